"""The zoo's own modules. Each returns its training loss as its first output and its logits as its second."""

from autosbp.zoo.models._faces import FaceRecognizer
from autosbp.zoo.models._mlp import MLP
from autosbp.zoo.models._moe import MoETransformer
from autosbp.zoo.models._resnet import ResNet
from autosbp.zoo.models._vgg import VGG
from autosbp.zoo.models._wide_deep import WideDeep

__all__ = ["MLP", "VGG", "FaceRecognizer", "MoETransformer", "ResNet", "WideDeep"]
