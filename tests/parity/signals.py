"""Models of images and signals for the parity comparison: sampling at points, Fourier transforms."""
import torch
from torch import nn
from torch.nn import functional as F


class SpatialTransformer(nn.Module):
    """A network that turns its image before it looks at it."""

    def __init__(self, classes):
        super().__init__()
        self.look = nn.Sequential(nn.Conv2d(1, 6, 5), nn.AvgPool2d(2), nn.Tanh(), nn.Flatten(), nn.Linear(6 * 36, 6))
        with torch.no_grad():
            self.look[-1].weight.mul_(0.3)
            self.look[-1].bias.copy_(torch.tensor([0.9, 0.15, 0.02, -0.1, 1.1, -0.03]))
        self.read = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.Tanh(), nn.AvgPool2d(4), nn.Flatten(),
                                  nn.Linear(8 * 16, classes))

    def forward(self, x):
        grid = F.affine_grid(self.look(x).view(-1, 2, 3), x.shape, align_corners=False)
        near = F.grid_sample(x, grid, padding_mode="border", align_corners=False)
        far = F.grid_sample(x, grid * 1.3, mode="bicubic", align_corners=True)
        return self.read(near + far)


class LongConvolution(nn.Module):
    """Each channel by a kernel as long as the signal, as S4 does in training."""

    def __init__(self, channels, length):
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(channels, length) / length ** 0.5)

    def forward(self, x):
        n = x.shape[-1]
        f = torch.fft.rfft(x, n=2 * n) * torch.fft.rfft(self.kernel, n=2 * n)
        return torch.fft.irfft(f, n=2 * n)[..., :n]


class Mixer(nn.Module):
    """A block of FNet."""

    def __init__(self, width):
        super().__init__()
        self.before, self.behind = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inner = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        x = self.before(x + torch.fft.fft2(x).real / x.shape[1])
        return self.behind(x + self.inner(x))


class Spectral(nn.Module):
    """A long convolution and FNet blocks over its frames; 2 * 509 and 67 have no small factors."""

    def __init__(self, classes, length=509):
        super().__init__()
        self.spread, self.long = nn.Linear(1, 4), LongConvolution(4, length)
        self.join, self.mix = nn.Linear(4, 67), Mixer(67)
        self.out = nn.Linear(67, classes)

    def forward(self, x):
        x = self.long(self.spread(x.unsqueeze(-1)).transpose(1, 2)).transpose(1, 2)
        return self.out(self.mix(self.join(torch.tanh(x[:, 1::13]))).mean(1))


class Spectrogram(nn.Module):
    """A network of images over the logarithm of a spectrogram, whose filter in front is trained."""

    def __init__(self, classes, frame=60):
        super().__init__()
        self.filter = nn.Conv1d(1, 1, 9, padding=4)
        self.register_buffer("window", torch.hann_window(frame))
        self.conv = nn.Conv2d(1, 6, 3, padding=1)
        self.out = nn.Linear(6 * 31, classes)

    def forward(self, x):
        x = x + self.filter(x.unsqueeze(1)).squeeze(1)
        n = self.window.shape[0]
        s = torch.stft(x, n, n // 4, window=self.window, center=False, return_complex=False)
        power = torch.log1p(s.pow(2).sum(-1)).unsqueeze(1)
        return self.out(torch.tanh(self.conv(power)).mean(-1).flatten(1))
