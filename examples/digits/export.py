"""Writes digits.onnx: a small CNN with BatchNorm for 8x8 images, with untrained weights.

usage: python export.py     (needs the package shardc of python/, torch, onnx and onnxscript)
"""
import shardc
import torch
from torch import nn


class Digits(nn.Module):
    def __init__(self, width=32):
        super().__init__()

        def block(cin, cout, stride):
            return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU())

        self.stem = block(1, width, 1)
        self.down = block(width, 2 * width, 2)
        self.body = block(2 * width, 2 * width, 1)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(2 * width, 10)

    def forward(self, x):
        x = self.down(self.stem(x))
        x = x + self.body(x)
        return self.head(self.pool(x).flatten(1))


def main():
    torch.manual_seed(0)
    model = Digits().train()
    shardc.export(model, torch.randn(2, 1, 8, 8), "digits.onnx", input_names=["x"], output_names=["logits"],
                  dynamic_batch=True)


main()
