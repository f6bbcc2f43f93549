"""Exports models for shardc, and checks that the program trains what the model trains.

    shardc.export(module, args, "model.onnx")           PyTorch: ONNX with all that the graph alone does not say
    shardc.check(module, args, "model.onnx", loss=..)   loss and gradients of the program beside PyTorch's

shardc.keras, shardc.jax, shardc.sklearn and shardc.paddle do the same for models of these, without PyTorch."""
from .errors import CheckError, ExportError

__all__ = ["CheckError", "ExportError", "Exported", "Report", "check", "export"]
HOME = {"Report": "checking", "check": "checking", "Exported": "exporting", "export": "exporting"}


def __getattr__(name):
    """What is PyTorch's is loaded when it is asked for: the other modules run without PyTorch."""
    import importlib
    if name not in HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{HOME[name]}", __name__), name)
