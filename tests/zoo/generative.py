"""Generative models, and learning from rewards."""
import torch
from case import Case, mlp
from torch import nn
from torch.nn import functional as F


class Vae(nn.Module):
    """A variational autoencoder; the noise is drawn in the model."""

    def __init__(self):
        super().__init__()
        self.encode, self.mean, self.spread = mlp(16, 24, last=True), nn.Linear(24, 4), nn.Linear(24, 4)
        self.decode = mlp(4, 24, 16)

    def forward(self, x):
        h = self.encode(x)
        mean, spread = self.mean(h), self.spread(h)
        z = mean + torch.randn_like(mean) * (0.5 * spread).exp()
        kl = -0.5 * (1 + spread - mean * mean - spread.exp()).sum(1).mean()
        return {"loss": F.mse_loss(self.decode(z), x) + 0.01 * kl}


class VaeOfNoise(Vae):
    """The same with the noise as an input."""

    def forward(self, x, noise):
        h = self.encode(x)
        mean, spread = self.mean(h), self.spread(h)
        kl = -0.5 * (1 + spread - mean * mean - spread.exp()).sum(1).mean()
        return {"loss": F.mse_loss(self.decode(mean + noise * (0.5 * spread).exp()), x) + 0.01 * kl}


class Gan(nn.Module):
    """The discriminator learns from fakes that are detached, the generator from detached weights."""

    def __init__(self):
        super().__init__()
        self.generator, self.discriminator = mlp(4, 24, 6), mlp(6, 24, 1)

    def forward(self, noise, real):
        fake = self.generator(noise)
        there, here = self.discriminator(real), self.discriminator(fake.detach())
        a, b = self.discriminator[0], self.discriminator[2]
        fooled = F.relu(F.linear(fake, a.weight.detach(), a.bias.detach()))
        fooled = F.linear(fooled, b.weight.detach(), b.bias.detach())
        one = torch.ones_like(there)
        bce = F.binary_cross_entropy_with_logits
        return {"loss": bce(there, one) + bce(here, 1 - one) + bce(fooled, one)}


class Vq(nn.Module):
    """Vector quantisation: straight through the nearest code."""

    def __init__(self):
        super().__init__()
        self.encode, self.decode, self.codes = mlp(8, 24, 4), mlp(4, 24, 8), nn.Embedding(16, 4)

    def forward(self, x):
        z = self.encode(x)
        nearest = (z[:, None] - self.codes.weight).pow(2).sum(-1).argmin(1)
        code = self.codes(nearest)
        near = F.mse_loss(code, z.detach()) + 0.25 * F.mse_loss(z, code.detach())
        return {"loss": F.mse_loss(self.decode(z + (code - z).detach()), x) + near}


class Diffusion(nn.Module):
    """A U-Net that finds the noise in images, by group norms, attention and an embedding of the time step."""

    class Block(nn.Module):
        def __init__(self, a, b):
            super().__init__()
            self.norm, self.conv = nn.GroupNorm(4, a), nn.Conv2d(a, b, 3, padding=1)
            self.time = nn.Linear(16, b)

        def forward(self, x, time):
            return self.conv(F.silu(self.norm(x))) + self.time(time)[:, :, None, None]

    def __init__(self):
        super().__init__()
        self.stem, self.time = nn.Conv2d(3, 8, 3, padding=1), mlp(8, 16, last=True, act=nn.SiLU)
        self.down, self.middle = Diffusion.Block(8, 16), Diffusion.Block(16, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.up, self.head = Diffusion.Block(24, 8), nn.Conv2d(8, 3, 3, padding=1)
        self.register_buffer("alpha", torch.linspace(0.99, 0.05, 50))

    def forward(self, x, noise, step):
        alpha = self.alpha[step][:, None, None, None]
        seen = alpha.sqrt() * x + (1 - alpha).sqrt() * noise
        waves = step[:, None] * torch.exp(-torch.arange(4, dtype=x.dtype))
        time = self.time(torch.cat([waves.sin(), waves.cos()], 1))
        first = self.stem(seen)
        y = self.middle(F.avg_pool2d(self.down(first, time), 2), time)
        flat = y.flatten(2).transpose(1, 2)
        y = y + self.attention(flat, flat, flat, need_weights=False)[0].transpose(1, 2).reshape(y.shape)
        y = self.up(torch.cat([F.interpolate(y, scale_factor=2.0, mode="nearest"), first], 1), time)
        return {"loss": F.mse_loss(self.head(y), noise)}


def noised(samples):
    return {"x": torch.randn(samples, 3, 8, 8), "noise": torch.randn(samples, 3, 8, 8),
            "step": torch.randint(0, 50, (samples,))}


class Nerf(nn.Module):
    """Colours along rays from waves of positions, summed by density."""

    def __init__(self):
        super().__init__()
        self.net, self.head = mlp(24, 32, 32, last=True), nn.Linear(32, 4)
        self.register_buffer("waves", 2.0 ** torch.arange(4))

    def forward(self, points, color):
        waves = (points[..., None] * self.waves).flatten(-2)
        out = self.head(self.net(torch.cat([waves.sin(), waves.cos()], -1)))
        density, rgb = F.relu(out[..., 3]), out[..., :3].sigmoid()
        depth = density * 0.1
        alpha, through = 1 - torch.exp(-depth), torch.exp(depth - torch.cumsum(depth, 1))
        return {"loss": F.mse_loss(((alpha * through)[..., None] * rgb).sum(1), color)}


class Flow(nn.Module):
    """RealNVP: halves scale and move each other; the density of the data is the loss."""

    def __init__(self):
        super().__init__()
        self.scale = nn.ModuleList(mlp(3, 16, 3, act=nn.Tanh) for _ in range(4))
        self.move = nn.ModuleList(mlp(3, 16, 3, act=nn.Tanh) for _ in range(4))

    def forward(self, x):
        a, b, volume = x[:, :3], x[:, 3:], 0
        for scale, move in zip(self.scale, self.move):
            s = torch.tanh(scale(a))
            a, b, volume = b * s.exp() + move(a), a, volume + s.sum(1)
        return {"loss": (0.5 * (a * a + b * b).sum(1) - volume).mean()}


class Dqn(nn.Module):
    """The target network is a part of the module, and runs without gradients."""

    def __init__(self):
        super().__init__()
        self.online, self.target = mlp(6, 24, 3), mlp(6, 24, 3)

    def forward(self, state, action, reward, later):
        with torch.no_grad():
            wanted = reward + 0.9 * self.target(later).max(1).values
        return {"loss": F.smooth_l1_loss(self.online(state).gather(1, action[:, None])[:, 0], wanted)}


class Ppo(nn.Module):
    """Policy and value with the clipped objective."""

    def __init__(self):
        super().__init__()
        self.trunk, self.policy, self.value = mlp(6, 24, last=True, act=nn.Tanh), nn.Linear(24, 3), nn.Linear(24, 1)

    def forward(self, state, action, old, advantage, returns):
        h = self.trunk(state)
        log = F.log_softmax(self.policy(h), 1)
        chosen = log.gather(1, action[:, None])[:, 0]
        ratio = (chosen - old).exp()
        gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        entropy = -(log.exp() * log).sum(1).mean()
        return {"loss": F.mse_loss(self.value(h)[:, 0], returns) - gain - 0.01 * entropy}


def plays(samples):
    return {"state": torch.randn(samples, 6), "action": torch.randint(0, 3, (samples,)), "reward": torch.randn(samples),
            "later": torch.randn(samples, 6)}


def episodes(samples):
    return {"state": torch.randn(samples, 6), "action": torch.randint(0, 3, (samples,)),
            "old": -torch.rand(samples) - 0.5, "advantage": torch.randn(samples), "returns": torch.randn(samples)}


CASES = {
    "VAE": Case(Vae, lambda n: {"x": torch.randn(n, 16)}, "output:loss", random=True, quick="dynamo"),
    "VAE, noise as an input": Case(VaeOfNoise, lambda n: {"x": torch.randn(n, 16), "noise": torch.randn(n, 4)},
                                   "output:loss", ranks=True),
    "GAN": Case(Gan, lambda n: {"noise": torch.randn(n, 4), "real": torch.randn(n, 6) + 1}, "output:loss"),
    "VQ-VAE": Case(Vq, lambda n: {"x": torch.randn(n, 8)}, "output:loss"),
    "diffusion U-Net": Case(Diffusion, noised, "output:loss", ranks=True, quick="torchscript"),
    "NeRF": Case(Nerf, lambda n: {"points": torch.randn(n, 8, 3), "color": torch.rand(n, 3)}, "output:loss"),
    "RealNVP": Case(Flow, lambda n: {"x": torch.randn(n, 6)}, "output:loss"),
    "DQN": Case(Dqn, plays, "output:loss", ranks=True, quick="dynamo"),
    "PPO": Case(Ppo, episodes, "output:loss"),
}
