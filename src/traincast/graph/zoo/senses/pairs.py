"""Models of images and text together: CLIP, CLIP on RoBERTa, and BridgeTower."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from traincast.graph.zoo.language.encoder import Embeddings
from traincast.graph.zoo.language.translation import MemoryAttention
from traincast.graph.zoo.parts.layers import (
    Layer,
    LayerConfig,
    check_choices,
    check_divides,
    check_sizes,
    cross_entropy,
)
from traincast.graph.zoo.traceable import Traceable


def _config(hidden: int, heads: int, seq: int, *, causal: bool = False, post_norm: bool = False) -> LayerConfig:
    return LayerConfig(
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=4 * hidden,
        seq=seq,
        causal=causal,
        post_norm=post_norm,
    )


class VisionTower(nn.Module):  # type: ignore[misc]
    """CLIP's vision transformer: patches, a class token, positions, a norm before and after the layers."""

    def __init__(self, config: LayerConfig, *, layers: int, patch: int) -> None:
        super().__init__()
        hidden = config.hidden
        self.patches = nn.Conv2d(3, hidden, patch, stride=patch, bias=False)
        self.class_token = nn.Parameter(torch.zeros(hidden))
        self.positions = nn.Embedding(config.seq, hidden)
        self.norm1 = nn.LayerNorm(hidden)
        self.layers = nn.ModuleList(Layer(config) for _ in range(layers))
        self.norm2 = nn.LayerNorm(hidden)

    def embed(self, images: Tensor) -> Tensor:
        """Images to ``[batch, patches + 1, hidden]``."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        first = self.class_token.expand(x.shape[0], 1, -1)
        return self.norm1(torch.cat((first, x), dim=1) + self.positions.weight)

    def forward(self, images: Tensor) -> Tensor:
        """Images to the normed class token ``[batch, hidden]``."""
        x = self.embed(images)
        for layer in self.layers:
            x = layer(x)
        return self.norm2(x[:, 0])


class TextTower(nn.Module):  # type: ignore[misc]
    """CLIP's causal text transformer, or with ``roberta`` RoBERTa's embeddings, layers and pooler."""

    def __init__(self, config: LayerConfig, *, layers: int, vocab: int, positions: int, roberta: bool) -> None:
        super().__init__()
        hidden = config.hidden
        self.embedding = (
            Embeddings(vocab=vocab, width=hidden, hidden=hidden, positions=positions, types=1, dropout=0.1)
            if roberta
            else nn.ModuleDict({"tokens": nn.Embedding(vocab, hidden), "positions": nn.Embedding(positions, hidden)})
        )
        self.layers = nn.ModuleList(Layer(config) for _ in range(layers))
        self.norm = None if roberta else nn.LayerNorm(hidden)
        self.pooler = nn.Linear(hidden, hidden) if roberta else None

    def embed(self, ids: Tensor) -> Tensor:
        """Token ids to ``[batch, seq, hidden]``."""
        if isinstance(self.embedding, Embeddings):
            return self.embedding(ids)
        places = torch.arange(ids.shape[1], device=ids.device)
        return self.embedding["tokens"](ids) + self.embedding["positions"](places)

    def forward(self, ids: Tensor) -> Tensor:
        """Token ids to ``[batch, hidden]``, of the last token or by the pooler."""
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        if self.norm is not None:
            return self.norm(x)[:, -1]
        return x[:, 0] if self.pooler is None else torch.tanh(self.pooler(x[:, 0]))


class CLIP(nn.Module):  # type: ignore[misc]
    """Two towers whose outputs are compared within a batch (Radford et al. 2021, figure 3)."""

    def __init__(self, vision: VisionTower, text: TextTower, *, widths: tuple[int, int], joint: int) -> None:
        super().__init__()
        self.vision, self.text = vision, text
        self.image_projection = nn.Linear(widths[0], joint, bias=False)
        self.text_projection = nn.Linear(widths[1], joint, bias=False)
        self.scale = nn.Parameter(torch.empty(()))

    def forward(self, images: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Unit vectors of images and of texts, ``[batch, joint]`` each, the images' scaled."""
        seen = functional.normalize(self.image_projection(self.vision(images)), dim=1)
        read = functional.normalize(self.text_projection(self.text(ids)), dim=1)
        return seen * self.scale.exp(), read


def _alike(outputs: tuple[Tensor, Tensor]) -> Tensor:
    """The products of pairs; those with the other samples of a batch are small beside the towers, and left out."""
    return (outputs[0] * outputs[1]).sum(dim=1).mean()


def clip(
    *,
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    text_layers: int = 12,
    text_hidden: int = 512,
    text_heads: int = 8,
    joint: int = 512,
    patch: int = 32,
    image: int = 224,
    vocab: int = 49408,
    seq: int = 77,
    roberta: bool = False,
) -> Traceable:
    """CLIP (Radford et al. 2021, arXiv:2103.00020); with ``roberta`` its text tower is RoBERTa."""
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "text_layers": text_layers, "text_hidden": text_hidden}
    sizes |= {"text_heads": text_heads, "joint": joint, "patch": patch, "image": image, "vocab": vocab, "seq": seq}
    check_sizes("clip", sizes)
    check_choices("clip", {"roberta": roberta})
    remedy = "choose heads that divide the width"
    check_divides("clip", whole=("hidden", hidden), parts=("heads", heads), remedy=remedy)
    check_divides("clip", whole=("text_hidden", text_hidden), parts=("text_heads", text_heads), remedy=remedy)
    check_divides(
        "clip", whole=("image", image), parts=("patch", patch), remedy="an image is a whole number of patches"
    )
    seen = _config(hidden, heads, (image // patch) ** 2 + 1)
    read = _config(text_hidden, text_heads, seq, causal=not roberta, post_norm=roberta)
    positions = 514 if roberta else seq
    with torch.device("meta"):
        vision = VisionTower(seen, layers=layers, patch=patch)
        text = TextTower(read, layers=text_layers, vocab=vocab, positions=positions, roberta=roberta)
        module = CLIP(vision, text, widths=(hidden, text_hidden), joint=joint)

    def inputs(batch: int) -> tuple[Tensor, ...]:
        device = next(module.parameters()).device
        ids = torch.empty(batch, seq, dtype=torch.int64, device=device)
        return torch.empty(batch, 3, image, image, dtype=vision.class_token.dtype, device=device), ids

    return Traceable(module=module, inputs=inputs, loss=_alike)


class BridgeLayer(nn.Module):  # type: ignore[misc]
    """A transformer layer that attends to itself, then to the other side (Xu et al. 2022, figure 2)."""

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.layer = Layer(config)
        self.norm = nn.LayerNorm(config.hidden)
        self.cross = MemoryAttention(config.hidden, config.heads)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        """Map ``x`` [batch, seq, hidden] to the same shape."""
        return self.layer(self.norm(x + self.cross(x, other)))


class BridgeTower(nn.Module):  # type: ignore[misc]
    """Two towers, whose last layers are bridged to layers that cross between them; images and texts are matched."""

    def __init__(self, vision: VisionTower, text: TextTower, config: LayerConfig, *, layers: int) -> None:
        super().__init__()
        hidden = config.hidden
        self.vision, self.text = vision, text
        self.start = max(0, len(vision.layers) - layers)
        self.enter = nn.ModuleList((nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)))
        self.bridges = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(2 * layers))
        self.seen = nn.ModuleList(BridgeLayer(config) for _ in range(layers))
        self.read = nn.ModuleList(BridgeLayer(config) for _ in range(layers))
        self.match = nn.Linear(2 * hidden, 2)

    def forward(self, images: Tensor, ids: Tensor) -> Tensor:
        """Logits ``[batch, 2]`` of whether image and text belong together."""
        x, y = self.vision.embed(images), self.text.embed(ids)
        seen = read = None
        for index, (see, read_layer) in enumerate(zip(self.vision.layers, self.text.layers, strict=True)):
            x, y = see(x), read_layer(y)
            at = index - self.start
            if at < 0:
                continue
            ours, theirs = self.enter[0](x), self.enter[1](y)
            if seen is not None and read is not None:
                ours, theirs = ours + seen, theirs + read
            ours, theirs = self.bridges[2 * at](ours), self.bridges[2 * at + 1](theirs)
            seen, read = self.seen[at](ours, theirs), self.read[at](theirs, ours)
        assert seen is not None and read is not None, "there is at least one crossing layer"
        return self.match(torch.cat([seen[:, 0], read[:, 0]], dim=1))


def bridgetower(
    *,
    layers: int = 24,
    hidden: int = 1024,
    heads: int = 16,
    crossing: int = 6,
    patch: int = 14,
    image: int = 294,
    vocab: int = 50265,
    seq: int = 128,
) -> Traceable:
    """BridgeTower (Xu et al. 2022, arXiv:2206.08657): ``crossing`` layers on towers of CLIP and RoBERTa."""
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "crossing": crossing, "patch": patch, "image": image}
    check_sizes("bridgetower", sizes | {"vocab": vocab, "seq": seq})
    check_divides("bridgetower", whole=("hidden", hidden), parts=("heads", heads), remedy="choose heads that divide it")
    check_divides("bridgetower", whole=("image", image), parts=("patch", patch), remedy="choose a multiple of patch")
    seen = _config(hidden, heads, (image // patch) ** 2 + 1)
    read = _config(hidden, heads, seq, post_norm=True)
    with torch.device("meta"):
        vision = VisionTower(seen, layers=layers, patch=patch)
        text = TextTower(read, layers=layers, vocab=vocab, positions=514, roberta=True)
        text.pooler = vision.norm2 = None
        module = BridgeTower(vision, text, read, layers=crossing)

    def inputs(batch: int) -> tuple[Tensor, ...]:
        device = next(module.parameters()).device
        ids = torch.empty(batch, seq, dtype=torch.int64, device=device)
        return torch.empty(batch, 3, image, image, dtype=vision.class_token.dtype, device=device), ids

    return Traceable(module=module, inputs=inputs, loss=cross_entropy)
