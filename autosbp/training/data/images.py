"""Image classification datasets: a folder with one sub-folder of images for each class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from autosbp.errors import InputError
from autosbp.graph.ir import Input, LogicalGraph

_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm")
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet's channels, as torchvision's models expect."""


class ImageFolder(Dataset[dict[str, torch.Tensor]]):
    """Images of a folder, sorted by class and file name; a class is the index of its sub-folder.

    An image is scaled so that its shorter side fits, cropped at the centre, and normalised with ImageNet's mean and
    standard deviation; for models with one input channel, it is greyscale in [0, 1].

    Raises:
        InputError: the model does not take images and class labels, or there are no images or too many classes.
    """

    def __init__(self, folder: Path, graph: LogicalGraph) -> None:
        self._image_module()
        self.pixels, self.labels = _image_inputs(graph)
        self.classes = sorted(path.name for path in folder.iterdir() if path.is_dir())
        self.samples = [
            (path, number)
            for number, name in enumerate(self.classes)
            for path in sorted((folder / name).rglob("*"))
            if path.suffix.lower() in _SUFFIXES
        ]
        if not self.samples:
            raise InputError("data", str(folder), "expected images in one sub-folder for each class")
        if self.labels.high is not None and len(self.classes) > self.labels.high:
            raise InputError("data", f"{len(self.classes)} classes", f"the model has {self.labels.high} classes")

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        path, number = self.samples[at]
        return {self.pixels.name: self._pixels(path), self.labels.name: torch.tensor(number)}

    def _pixels(self, path: Path) -> torch.Tensor:
        channels, height, width = (int(size) for size in self.pixels.meta.shape[1:])
        module = self._image_module()
        with module.open(path) as opened:
            image = opened.convert("L" if channels == 1 else "RGB")
        fitted = _fitted(image, width, height, module)
        values = torch.from_numpy(np.array(fitted, dtype=np.float32)).reshape(height, width, channels) / 255
        if channels == 3:
            values = (values - torch.tensor(_MEAN)) / torch.tensor(_DEVIATION)
        return values.permute(2, 0, 1).contiguous()

    @staticmethod
    def _image_module() -> Any:
        try:
            from PIL import Image
        except ImportError as missing:
            raise InputError("data", "images", "reading images needs the package pillow") from missing
        return Image


def _fitted(image: Any, width: int, height: int, module: Any) -> Any:
    """The image scaled so that its shorter side fits this size, and cropped at the centre."""
    scale = max(width / image.width, height / image.height)
    size = (max(width, round(image.width * scale)), max(height, round(image.height * scale)))
    scaled = image.resize(size, module.Resampling.BILINEAR)
    left, top = (size[0] - width) // 2, (size[1] - height) // 2
    return scaled.crop((left, top, left + width, top + height))


def _image_inputs(graph: LogicalGraph) -> tuple[Input, Input]:
    pixels = [leaf for leaf in graph.inputs if leaf.meta.is_float and len(leaf.meta.shape) == 4]
    labels = [leaf for leaf in graph.inputs if not leaf.meta.is_float and len(leaf.meta.shape) == 1]
    if len(pixels) != 1 or len(labels) != 1 or len(graph.inputs) != 2 or pixels[0].meta.shape[1] not in (1, 3):
        names = ", ".join(f"{leaf.name} {list(leaf.meta.shape)}" for leaf in graph.inputs)
        limit = "a folder of images is for models of images [batch, 1 or 3, height, width] and classes [batch]"
        raise InputError("data", names, limit)
    return pixels[0], labels[0]
