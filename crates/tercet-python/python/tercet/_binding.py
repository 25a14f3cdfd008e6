"""Bindings of inputs and outputs, as ONNX Runtime's `IOBinding`."""

from __future__ import annotations

from typing import Any

from ._tercet import DeviceTensor, OnnxModel


class IOBinding:
    """Inputs and outputs of an `OnnxModel`, each bound to the host or to the device.

    Outputs on the device stay there: bind them as inputs of the next run, such as the KV cache of a
    decoder.
    """

    def __init__(self, session: OnnxModel) -> None:
        self._session = session
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, bool] = {}
        self._results: dict[str, Any] = {}

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Bind an input to an array on the host."""
        self._inputs[name] = arr_on_cpu

    def bind_ortvalue_input(self, name: str, ortvalue: DeviceTensor) -> None:
        """Bind an input to a tensor on the device."""
        self._inputs[name] = ortvalue

    def bind_output(self, name: str, device_type: str = "cpu", device_id: int = 0) -> None:
        """Bind an output to the host (`cpu`), or leave it on the device (any other type)."""
        self._outputs[name] = device_type != "cpu"

    def clear_binding_inputs(self) -> None:
        """Remove all inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Remove all outputs and the results of the last run."""
        self._outputs.clear()
        self._results.clear()

    def synchronize_inputs(self) -> None:
        """Does nothing: a run waits for its inputs."""

    def synchronize_outputs(self) -> None:
        """Does nothing: a run waits for its outputs."""

    def get_outputs(self) -> list[Any]:
        """The results of the last run, in the order of the bindings: tensors on the device where an
        output is bound to it, else arrays."""
        return list(self._results.values())

    def copy_outputs_to_cpu(self) -> list[Any]:
        """The results of the last run as arrays."""
        return [result.numpy() if isinstance(result, DeviceTensor) else result for result in self._results.values()]

    def __repr__(self) -> str:
        return f"<tercet.IOBinding: inputs {list(self._inputs)}, outputs {list(self._outputs)}>"

    def _repr_html_(self) -> str:
        from html import escape

        rows = [("input", name, type(value).__name__) for name, value in self._inputs.items()]
        rows += [("output", name, "device" if stays else "host") for name, stays in self._outputs.items()]
        cells = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        return f"<table><caption>tercet.IOBinding</caption><tbody>{cells}</tbody></table>"

    def _run(self, session: OnnxModel) -> None:
        """Run the model of the binding. Results of unbound outputs are arrays."""
        names = list(self._outputs) or [output.name for output in session.get_outputs()]
        if not any(self._outputs.values()):
            self._results = session.run(self._inputs, names)
            return
        results = session.run_on_device(self._inputs, names)
        self._results = {
            name: result if self._outputs[name] or not isinstance(result, DeviceTensor) else result.numpy()
            for name, result in results.items()
        }
