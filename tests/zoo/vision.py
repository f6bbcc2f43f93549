"""Images: convolutions, transformers, mixers; classes, segments, boxes, pairs."""
import torch
import transformers as hf
from case import CLASSES, LENGTH, VOCAB, Case, images, mlp, tokens
from torch import nn
from torch.nn import functional as F

QUIET = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
PATCHES = {"image_size": 32, "patch_size": 8, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
           "intermediate_size": 32}


def resnet():
    return hf.ResNetForImageClassification(hf.ResNetConfig(
        layer_type="bottleneck", embedding_size=8, depths=[1, 1, 1], hidden_sizes=[16, 32, 64], num_labels=CLASSES))


def mobilenet():
    return hf.MobileNetV2ForImageClassification(hf.MobileNetV2Config(
        image_size=32, depth_multiplier=0.25, num_labels=CLASSES, classifier_dropout_prob=0.0, tf_padding=False))


def vit():
    return hf.ViTForImageClassification(hf.ViTConfig(**PATCHES, **QUIET, num_labels=CLASSES))


def deit():
    return hf.DeiTForImageClassification(hf.DeiTConfig(**PATCHES, **QUIET, num_labels=CLASSES))


def swin():
    return hf.SwinForImageClassification(hf.SwinConfig(
        image_size=32, patch_size=2, embed_dim=8, depths=[2, 2], num_heads=[2, 2], window_size=4, drop_path_rate=0.0,
        **QUIET, num_labels=CLASSES))


def convnext(rate=0.0):
    return hf.ConvNextForImageClassification(hf.ConvNextConfig(
        image_size=32, hidden_sizes=[8, 16], depths=[1, 2], num_stages=2, drop_path_rate=rate, num_labels=CLASSES))


def segformer():
    return hf.SegformerForImageClassification(hf.SegformerConfig(
        hidden_sizes=[8, 16], num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], patch_sizes=[7, 3], strides=[4, 2],
        num_attention_heads=[1, 2], mlp_ratios=[2, 2], drop_path_rate=0.0, classifier_dropout_prob=0.0, **QUIET,
        num_labels=CLASSES))


def efficientnet():
    return hf.EfficientNetForImageClassification(hf.EfficientNetConfig(
        image_size=32, width_coefficient=0.25, depth_coefficient=0.1, hidden_dim=320, dropout_rate=0.0,
        drop_connect_rate=0.0, num_labels=CLASSES))


class DropPath(nn.Module):
    """Leaves out the branch of some samples, as timm draws them."""

    def __init__(self, rate):
        super().__init__()
        self.rate = rate

    def forward(self, x):
        if not self.rate or not self.training:
            return x
        keep = 1 - self.rate
        return x * x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(keep).div_(keep)


class ConvNextOfTimm(nn.Module):
    """Depthwise convolutions, norms over the last axis, scaled branches; stages that grow."""

    class Block(nn.Module):
        def __init__(self, width, rate):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width, 1e-6)
            self.mlp, self.drop = mlp(width, 4 * width, width, act=nn.GELU), DropPath(rate)
            self.gamma = nn.Parameter(torch.full((width,), 0.1))

        def forward(self, x):
            y = self.mlp(self.norm(self.conv(x).permute(0, 2, 3, 1)))
            return x + self.drop((self.gamma * y).permute(0, 3, 1, 2))

    def __init__(self, rate):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 4, stride=4), nn.LayerNorm(8)
        self.first, self.last = ConvNextOfTimm.Block(8, rate / 2), ConvNextOfTimm.Block(16, rate)
        self.down, self.head = nn.Conv2d(8, 16, 2, stride=2), nn.Sequential(nn.LayerNorm(16), nn.Linear(16, CLASSES))

    def forward(self, x):
        x = self.norm(self.stem(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.head(self.last(self.down(self.first(x))).mean((2, 3)))


class SwinOfTimm(nn.Module):
    """Attention in windows, every other block in shifted ones, with a table of relative places; patches merge."""

    class Block(nn.Module):
        def __init__(self, width, side, window, shift, rate, heads=2):
            super().__init__()
            self.side, self.window, self.shift, self.heads = side, window, shift, heads
            self.a, self.b, self.drop = nn.LayerNorm(width), nn.LayerNorm(width), DropPath(rate)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = mlp(width, 2 * width, width, act=nn.GELU)
            self.table = nn.Parameter(torch.randn((2 * window - 1) ** 2, heads) / 4)
            at = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
            away = at[:, :, None] - at[:, None] + window - 1
            self.register_buffer("index", away[0] * (2 * window - 1) + away[1], persistent=False)
            self.register_buffer("mask", self.shifted(), persistent=False)

        def shifted(self):
            """Which places of a window were no neighbours before the shift."""
            image, parts = torch.zeros(1, self.side, self.side, 1), (slice(0, -self.window), slice(-self.window, -self.shift),
                                                                     slice(-self.shift, None))
            if not self.shift:
                return None
            for i, (h, w) in enumerate((h, w) for h in parts for w in parts):
                image[:, h, w] = i
            rows = self.windows(image)[..., 0]
            return (rows[:, None] != rows[:, :, None]).float() * -100

        def windows(self, x):
            n, c, w, k = x.shape[0], x.shape[3], self.window, self.side // self.window
            return x.view(n, k, w, k, w, c).permute(0, 1, 3, 2, 4, 5).reshape(n * k * k, w * w, c)

        def attend(self, x):
            t, w, k = self.window ** 2, self.window, self.side // self.window
            n, c, heads = x.shape[0], x.shape[3], self.heads
            x = self.windows(torch.roll(x, (-self.shift, -self.shift), (1, 2)))
            q, key, v = self.qkv(x).reshape(n * k * k, t, 3, heads, c // heads).permute(2, 0, 3, 1, 4).unbind(0)
            weights = q * (c // heads) ** -0.5 @ key.transpose(-2, -1)
            weights = weights + self.table[self.index.view(-1)].view(t, t, heads).permute(2, 0, 1)
            if self.mask is not None:
                weights = (weights.view(n, k * k, heads, t, t) + self.mask[:, None]).view(-1, heads, t, t)
            x = self.out((weights.softmax(-1) @ v).transpose(1, 2).reshape(n * k * k, t, c))
            x = x.view(n, k, k, w, w, c).permute(0, 1, 3, 2, 4, 5).reshape(n, self.side, self.side, c)
            return torch.roll(x, (self.shift, self.shift), (1, 2))

        def forward(self, x):
            x = x + self.drop(self.attend(self.a(x)))
            return x + self.drop(self.mlp(self.b(x)))

    def __init__(self, rate=0.0):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 4, stride=4), nn.LayerNorm(8)
        self.first = nn.Sequential(SwinOfTimm.Block(8, 8, 4, 0, rate / 2), SwinOfTimm.Block(8, 8, 4, 2, rate))
        self.merge = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 16, bias=False))
        self.last = SwinOfTimm.Block(16, 4, 4, 0, rate)
        self.head = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, CLASSES))

    def forward(self, x):
        x = self.first(self.norm(self.stem(x).permute(0, 2, 3, 1)))
        x = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1)
        return self.head(self.last(self.merge(x)).mean((1, 2)))


class Clip(nn.Module):
    """Texts and images side by side, with the contrastive loss."""

    def __init__(self):
        super().__init__()
        text = {"vocab_size": VOCAB, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
                "num_attention_heads": 2, "max_position_embeddings": 32, "eos_token_id": 2, "pad_token_id": 0,
                "bos_token_id": 1}
        self.clip = hf.CLIPModel(hf.CLIPConfig(text_config=text, vision_config=PATCHES, projection_dim=8))

    def forward(self, input_ids, pixel_values):
        alike = self.clip(input_ids=input_ids, pixel_values=pixel_values).logits_per_text
        same = torch.arange(alike.shape[0])
        return {"loss": (F.cross_entropy(alike, same) + F.cross_entropy(alike.T, same)) / 2}


class SimClr(nn.Module):
    """Two views of each image; another image's are what a view is told from."""

    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Conv2d(3, 8, 3, stride=4), nn.ReLU(), nn.Flatten(), mlp(512, 24, 8))
        self.temperature = nn.Parameter(torch.tensor([0.5]))

    def forward(self, a, b):
        z = F.normalize(self.encode(torch.cat([a, b])), dim=1)
        n = a.shape[0]
        alike = (z @ z.T / self.temperature).masked_fill(torch.eye(2 * n, dtype=torch.bool), -1e9)
        return {"loss": F.cross_entropy(alike, torch.cat([torch.arange(n, 2 * n), torch.arange(n)]))}


class Detr(nn.Module):
    """Detection by queries, each with its box, so that nothing has to be matched."""

    def __init__(self, queries=5, width=16):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 8, 4, stride=4), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, width, 2, 2))
        self.places = nn.Parameter(torch.randn(16, width) / 4)
        self.queries = nn.Parameter(torch.randn(queries, width) / 4)
        layer = {"d_model": width, "nhead": 2, "dim_feedforward": 32, "dropout": 0.0, "batch_first": True}
        self.encoder = nn.TransformerEncoderLayer(**layer)
        self.decoder = nn.TransformerDecoderLayer(**layer)
        self.classes, self.boxes = nn.Linear(width, CLASSES + 1), mlp(width, width, 4)

    def forward(self, x, kinds, boxes):
        seen = self.encoder(self.backbone(x).flatten(2).transpose(1, 2) + self.places)
        y = self.decoder(self.queries.expand(x.shape[0], -1, -1), seen)
        near = (self.boxes(y).sigmoid() - boxes).abs().mean()
        return {"loss": F.cross_entropy(self.classes(y).transpose(1, 2), kinds) + 5 * near}


def boxes(samples):
    return {"x": torch.randn(samples, 3, 32, 32), "kinds": torch.randint(0, CLASSES + 1, (samples, 5)),
            "boxes": torch.rand(samples, 5, 4)}


class SpatialTransformer(nn.Module):
    """Images are turned by what a small network finds, and classified then."""

    def __init__(self):
        super().__init__()
        self.find = nn.Sequential(nn.Conv2d(1, 4, 5, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(144, 16), nn.ReLU())
        self.turn = nn.Linear(16, 6)
        self.net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.AvgPool2d(7), nn.Flatten(), nn.Linear(32, CLASSES))
        with torch.no_grad():
            self.turn.bias.copy_(torch.tensor([1., 0.1, 0.05, -0.1, 0.9, 0.02]))

    def forward(self, x):
        theta = self.turn(self.find(x)).view(-1, 2, 3)
        grid = F.affine_grid(theta, x.shape, align_corners=False)
        return self.net(F.grid_sample(x, grid, align_corners=False))


class Quantised(nn.Module):
    """A CNN whose weights and values are rounded to eight bits in forward, and straight through in backward."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x):
        def rounded(t, scale):
            return torch.fake_quantize_per_tensor_affine(t, scale, 0, -128, 127)
        for layer in (self.first, self.second):
            x = F.relu(F.conv2d(rounded(x, 0.05), rounded(layer.weight, 0.004), layer.bias, padding=1))
            x = F.max_pool2d(x, 2)
        return self.head(x.mean((2, 3)))


class Volume(nn.Module):
    """Convolutions in three dimensions, as of scans and videos."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ReLU(), nn.MaxPool3d(2),
                                 nn.Conv3d(4, 8, 3, padding=1, bias=False), nn.ReLU(), nn.AdaptiveAvgPool3d(1),
                                 nn.Flatten(), nn.Linear(8, CLASSES))

    def forward(self, x):
        return self.net(x)


class Unet(nn.Module):
    """Segments: down, up, and across."""

    def __init__(self):
        super().__init__()
        def block(a, b):
            return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU())
        self.a, self.b, self.c = block(3, 8), block(8, 16), block(16, 8)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.head = nn.Conv2d(8, CLASSES, 1)

    def forward(self, x):
        a = self.a(x)
        up = self.up(self.b(F.max_pool2d(a, 2)))
        return self.head(self.c(torch.cat([a, up], 1))).permute(0, 2, 3, 1)


class Dense(nn.Module):
    """DenseNet: each layer reads all before it."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.BatchNorm2d(3 + 4 * i), nn.ReLU(), nn.Conv2d(3 + 4 * i, 4, 3, padding=1))
                                    for i in range(4))
        self.head = nn.Linear(19, CLASSES)

    def forward(self, x):
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Mixer(nn.Module):
    """MLP-Mixer: patches by a convolution, tokens and channels mixed in turn."""

    class Block(nn.Module):
        def __init__(self, count, width):
            super().__init__()
            self.a, self.b = nn.LayerNorm(width), nn.LayerNorm(width)
            self.tokens, self.channels = mlp(count, 2 * count, count, act=nn.GELU), mlp(width, 2 * width, width, act=nn.GELU)

        def forward(self, x):
            x = x + self.tokens(self.a(x).transpose(1, 2)).transpose(1, 2)
            return x + self.channels(self.b(x))

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 8, stride=8)
        self.blocks = nn.Sequential(*(Mixer.Block(16, 12) for _ in range(2)))
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x).flatten(2).transpose(1, 2)).mean(1))


class Xcit(nn.Module):
    """Attention over channels, with a temperature per head, and a convolution over patches."""

    class Block(nn.Module):
        def __init__(self, width, heads, side):
            super().__init__()
            self.heads, self.side = heads, side
            self.a, self.b, self.c = (nn.LayerNorm(width) for _ in range(3))
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.temperature = nn.Parameter(torch.ones(heads, 1, 1))
            self.local = nn.Conv2d(width, width, 3, padding=1, groups=width)
            self.mlp = mlp(width, 2 * width, width, act=nn.GELU)
            self.gamma = nn.Parameter(torch.full((width,), 0.5))

        def attend(self, x):
            n, t, c = x.shape
            q, k, v = self.qkv(x).view(n, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 4, 1)
            q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
            weights = (q @ k.transpose(-2, -1) * self.temperature).softmax(-1)
            return self.out((weights @ v).permute(0, 3, 1, 2).reshape(n, t, c))

        def forward(self, x):
            n, t, c = x.shape
            x = x + self.gamma * self.attend(self.a(x))
            y = self.b(x).transpose(1, 2).reshape(n, c, self.side, self.side)
            x = x + self.local(y).reshape(n, c, t).transpose(1, 2)
            return x + self.mlp(self.c(x))

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 8, stride=8)
        self.blocks = nn.Sequential(*(Xcit.Block(12, 2, 4) for _ in range(2)))
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x).flatten(2).transpose(1, 2)).mean(1))


def pixels(samples):
    return {"pixel_values": torch.randn(samples, 3, 32, 32), "labels": torch.randint(0, CLASSES, (samples,))}


def pairs(samples):
    return {"input_ids": tokens(samples, LENGTH), "pixel_values": torch.randn(samples, 3, 32, 32)}


def segments(samples):
    return {"x": torch.randn(samples, 3, 16, 16), "labels": torch.randint(0, CLASSES, (samples, 16, 16))}


VIEW = "PyTorch's exporter fails in a view"
CASES = {
    "ResNet": Case(resnet, pixels, output="logits", ranks=True, quick="torchscript"),
    "MobileNetV2": Case(mobilenet, pixels, output="logits"),
    "EfficientNet": Case(efficientnet, pixels, output="logits"),
    "DenseNet": Case(Dense, images),
    "ConvNeXt": Case(convnext, pixels, output="logits"),
    "ConvNeXt, DropPath": Case(lambda: convnext(0.3), pixels, output="logits", random=True),
    "ViT": Case(vit, pixels, output="logits", ranks=True),
    "DeiT": Case(deit, pixels, output="logits"),
    "Swin": Case(swin, pixels, output="logits", beyond={"dynamo": VIEW}),
    "ConvNeXt of timm": Case(lambda: ConvNextOfTimm(0.0), images),
    "ConvNeXt of timm, DropPath": Case(lambda: ConvNextOfTimm(0.3), images, random=True),
    "Swin of timm": Case(SwinOfTimm, images, ranks=True),
    "Swin of timm, DropPath": Case(lambda: SwinOfTimm(0.3), images, random=True),
    "SegFormer": Case(segformer, pixels, output="logits"),
    "MLP-Mixer": Case(Mixer, images, quick="dynamo"),
    "XCiT": Case(Xcit, images),
    "U-Net": Case(Unet, segments, "cross_entropy:axis=-1"),
    "3-D CNN": Case(Volume, lambda n: {"x": torch.randn(n, 1, 8, 8, 8), "labels": torch.randint(0, CLASSES, (n,))}, ranks=True),
    "spatial transformer": Case(SpatialTransformer, lambda n: images(n, 16, 1), ranks=True, opset={"torchscript": 20},
                                quick="torchscript"),
    "quantisation-aware CNN": Case(Quantised, lambda n: images(n, 16), quick="torchscript"),
    "CLIP": Case(Clip, pairs, "output:loss"),
    "SimCLR": Case(SimClr, lambda n: {"a": torch.randn(n, 3, 32, 32), "b": torch.randn(n, 3, 32, 32)}, "output:loss"),
    "DETR without matching": Case(Detr, boxes, "output:loss", ranks=True),
}
