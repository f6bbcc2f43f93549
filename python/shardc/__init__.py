"""Exports PyTorch modules for shardc, and checks that the program trains what the module trains.

    shardc.export(module, args, "model.onnx")           ONNX with all that the graph alone does not say
    shardc.check(module, args, "model.onnx", loss=..)   loss and gradients of the program beside PyTorch's
"""
from .checking import Report, check
from .errors import CheckError, ExportError
from .exporting import Exported, export

__all__ = ["CheckError", "ExportError", "Exported", "Report", "check", "export"]
