"""tests/e2e/ckpt_torch.py: states of torch.optim.Adam under names and numbers, by shardc ckpt rekey, back into PyTorch.

usage: ckpt_torch.py SHARDC      in a folder of its own"""
import subprocess
import sys

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file


def make():
    torch.manual_seed(1)
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))
    module[0].bias.requires_grad = False  # has a number, and no state
    return module, torch.optim.Adam(module.parameters(), lr=0.01)


def step(module, optimizer, seed):
    optimizer.zero_grad()
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(seed))
    module(x).square().mean().backward()
    optimizer.step()


def rekey(*args):
    subprocess.run([sys.argv[1], "ckpt", "rekey", *args], check=True)


module, optimizer = make()
for seed in range(3):
    step(module, optimizer, seed)
names = [name for name, p in module.named_parameters()]
states = optimizer.state_dict()["state"]
save_file({f"{names[k]}.{key}": t for k, s in states.items() for key, t in s.items()}, "named")
save_file({f"state.{k}.{key}": t for k, s in states.items() for key, t in s.items()}, "numbered")
open("names.txt", "w").write("\n".join(names))

# numbers as the page loads them: the next step is the same, bit by bit
rekey("named", "--to=index", "--order=names.txt", "-o", "indexed")
state = {}
for key, t in load_file("indexed").items():
    _, k, name = key.split(".")
    state.setdefault(int(k), {})[name] = t
other, again = make()
other.load_state_dict(module.state_dict())
again.load_state_dict({"state": state, "param_groups": again.state_dict()["param_groups"]})
step(module, optimizer, 9)
step(other, again, 9)
for (name, p), q in zip(module.named_parameters(), other.parameters()):
    assert torch.equal(p, q), name

# A model whose modules are used in another order than they were defined in: numbers are PyTorch's still
class Crossed(torch.nn.Module):
    def __init__(self, tied=False):
        super().__init__()
        self.z, self.a, self.out = (torch.nn.Linear(8, 8) for _ in range(3))
        self.out.weight = self.a.weight if tied else self.out.weight

    def forward(self, x):
        return self.out(self.z(self.a(x).relu()).relu())


def save_crossed(crossed):
    torch.onnx.export(crossed, (torch.zeros(4, 8),), "crossed.onnx", dynamo=False, do_constant_folding=False,
                      training=torch.onnx.TrainingMode.TRAINING)
    adam = torch.optim.Adam(crossed.parameters(), lr=0.01)
    crossed(torch.randn(4, 8)).square().mean().backward()
    adam.step()
    save_file({f"{name}.{key}": t for name, p in crossed.named_parameters() for key, t in adam.state[p].items()}, "used")
    return adam.state_dict()["state"]


torch.manual_seed(2)
own = save_crossed(Crossed())
rekey("used", "--to=index", "--onnx=crossed.onnx", "-o", "defined")
defined = load_file("defined")
assert len(defined) == 18 and all(torch.equal(t, defined[f"state.{k}.{key}"]) for k, s in own.items() for key, t in s.items())
with safe_open("defined", "pt") as f:
    assert f.metadata()["params"].split("\n") == [name for name, p in Crossed().named_parameters()]
save_crossed(Crossed(tied=True))  # where exporters put such a parameter is not known
tied = [sys.argv[1], "ckpt", "rekey", "used", "--to=index", "--onnx=crossed.onnx", "-o", "tied"]
done = subprocess.run(tied, capture_output=True, text=True)
assert done.returncode == 1 and 'is "out.weight" too' in done.stderr + done.stdout, done

# PyTorch's numbers under names
rekey("numbered", "--to=name", "--order=names.txt", "-o", "back")
named, back = load_file("named"), load_file("back")
assert named.keys() == back.keys() and all(torch.equal(named[k], back[k]) for k in named)
print("states of", len(states), "parameters, there and back")
