//! Pipelined runs: a run submitted before the previous one has completed.
//!
//! The run in flight still reads its inputs and launch-time values, so the host must not overwrite
//! them. The device writes the inputs and launch-time values of the second run between the two runs
//! ([`InputUpdate`]).

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;
use tercet_ir::backend::{OutputSelection, find_port, places};
use tercet_ir::{Bindings, RunError, Tensor, TensorType};

use super::{
    GpuExecutable, InFlightRun, InputUpdate, LoadedProgram, ReadbackRange, readback_range,
};
use crate::device_data;
use crate::program::{GpuProgram, IoBinding};

/// Maximum size in bytes of all inputs that are written between two pipelined runs; the command
/// stream carries these inputs inline.
const MAX_GATHERED_BYTES: usize = 64 << 10;

/// Indices of the inputs to write, each with its byte range in the concatenated data of these
/// inputs.
type GatheredInputRanges = SmallVec<[(usize, Range<usize>); 8]>;

/// An input of the second run that receives an output of the run in flight.
pub(super) struct ForwardedInput {
    input: usize,
    output: usize,
    ty: TensorType,
}

impl<D: LoadedProgram> GpuExecutable<D> {
    /// Implements [`tercet_ir::Executable::submit_pipelined`].
    pub(super) fn start_pipelined(
        &mut self,
        inputs: &[(&str, &Tensor)],
        carried: &[(&str, &str)],
        wanted: OutputSelection<'_>,
    ) -> Result<bool, RunError> {
        let program = Arc::clone(&self.program);
        let places = places(&program.signature, wanted)?;
        let Some(flight) = self.flight.as_ref() else {
            return Ok(false);
        };
        let (sizes, counts) = (flight.sizes.clone(), flight.counts);
        let carried = self.carried(&program, carried, &sizes)?;
        if self.pipelined.is_some()
            || !program.flow.is_empty()
            || !self.is_small_transfer(inputs, &carried)
        {
            return Ok(false);
        }
        if self.sizes_of(inputs, &carried)? != sizes {
            return Ok(false);
        }
        let (bytes, written) = self.encoded(&program, inputs)?;
        let mut puts: SmallVec<[InputUpdate<'_>; 8]> = SmallVec::new();
        for (at, range) in &written {
            let slot = program.slot(program.inputs[*at].slot);
            puts.push(InputUpdate::Bytes {
                buffer: slot.buffer,
                offset_bytes: slot.offset_bytes,
                bytes: &bytes[range.clone()],
            });
        }
        puts.extend(carried.iter().filter_map(|c| copy(&program, c)));
        let mut random = self.random;
        if counts {
            random.count();
        }
        self.sizes_changed |= self.compute(&program, random)?;
        let mut reads: SmallVec<[ReadbackRange; 4]> = self.faults.into_iter().collect();
        let ranges = places
            .iter()
            .filter_map(|&place| readback_range(&program, &self.launch, &program.outputs[place]));
        reads.extend(ranges.filter(|r| r.bytes > 0));
        let driver = self.driver.get_mut();
        if !driver.submit_pipelined(&self.launch, self.sizes_changed, &puts, &reads)? {
            return Ok(false);
        }
        self.sizes_changed = false;
        for (at, _) in written {
            self.store_input(at, inputs);
        }
        for c in &carried {
            self.invalidate_input(c.input);
        }
        self.pipelined = Some(InFlightRun {
            output_indices: places,
            sizes,
            counts: true,
        });
        Ok(true)
    }

    /// Looks up the (input, output) names of inputs that receive an output of the run in flight.
    fn carried(
        &self,
        program: &GpuProgram,
        names: &[(&str, &str)],
        sizes: &Bindings,
    ) -> Result<SmallVec<[ForwardedInput; 2]>, RunError> {
        let signature = &program.signature;
        let carried = names.iter().map(|(input, output)| {
            let (input, _) = find_port(&signature.inputs, "input", input)?;
            let (output, _) = find_port(&signature.outputs, "output", output)?;
            let ty = program.outputs[output].ty.eval(sizes)?;
            Ok(ForwardedInput { input, output, ty })
        });
        carried.collect()
    }

    /// Whether all inputs that receive no output are already on the device or small enough for the
    /// command stream.
    fn is_small_transfer(&self, inputs: &[(&str, &Tensor)], carried: &[ForwardedInput]) -> bool {
        let ports = self.program.signature.inputs.iter().enumerate();
        let mut bytes = 0;
        for (at, port) in ports {
            if carried.iter().any(|c| c.input == at) {
                continue;
            }
            match inputs.iter().find(|(name, _)| *name == port.name) {
                Some((_, tensor)) => bytes += device_data::device_bytes(tensor.ty()),
                None if !self.has_bound(at) => return false,
                None => {}
            }
        }
        bytes <= MAX_GATHERED_BYTES
    }

    /// Symbol values of a run, derived from the types of these inputs, of forwarded outputs and of
    /// bound tensors.
    pub(super) fn sizes_of(
        &self,
        inputs: &[(&str, &Tensor)],
        carried: &[ForwardedInput],
    ) -> Result<Bindings, RunError> {
        let signature = &self.program.signature;
        let of_others = carried
            .iter()
            .map(|c| (signature.inputs[c.input].name.as_str(), &c.ty));
        let mut types: SmallVec<[(&str, &TensorType); 16]> = of_others.collect();
        types.extend(inputs.iter().map(|(name, tensor)| (*name, tensor.ty())));
        self.inputs.add_bound(signature, &mut types);
        let mut sizes = Bindings::new();
        signature.bind_types(&types, &self.bounds, &mut sizes)?;
        Ok(sizes)
    }

    /// Encodes the inputs that are not yet on the device, each padded to whole words; returns all
    /// bytes, and the index and range of each input.
    fn encoded(
        &mut self,
        program: &GpuProgram,
        inputs: &[(&str, &Tensor)],
    ) -> Result<(Vec<u8>, GatheredInputRanges), RunError> {
        let (mut bytes, mut written) = (Vec::new(), SmallVec::new());
        for (at, port) in program.signature.inputs.iter().enumerate() {
            let Some((_, tensor)) = inputs.iter().find(|(name, _)| *name == port.name) else {
                continue;
            };
            if self.has_input(at, tensor) {
                continue;
            }
            let encoded = device_data::encode("input", &port.name, tensor, &mut self.scratch)?;
            let start = bytes.len();
            bytes.extend_from_slice(encoded);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            if bytes.len() > start {
                written.push((at, start..bytes.len()));
            }
        }
        Ok((bytes, written))
    }
}

/// The device-side copy of an output into an input slot; `None` if the output is empty.
fn copy<'a>(program: &GpuProgram, carried: &ForwardedInput) -> Option<InputUpdate<'a>> {
    let slot = |io: &IoBinding| *program.slot(io.slot);
    let (from, to) = (
        slot(&program.outputs[carried.output]),
        slot(&program.inputs[carried.input]),
    );
    let bytes = device_data::device_bytes(&carried.ty).next_multiple_of(4) as u64;
    (bytes > 0).then_some(InputUpdate::Copy {
        from: ReadbackRange {
            buffer: from.buffer,
            offset_bytes: from.offset_bytes,
            bytes,
        },
        buffer: to.buffer,
        offset_bytes: to.offset_bytes,
    })
}
