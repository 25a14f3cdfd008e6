//! A run behind another, started before the older one's results are there.
//!
//! The older run still reads its inputs and numbers, so that those of the new one cannot be written by the host: they are
//! put into place by the device, between the two ([`Put`]).

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;
use tercet_ir::backend::{Wanted, find_port, places};
use tercet_ir::{Bindings, RunError, Tensor, TensorType};

use super::{Driver, Flight, GpuExecutable, Put, Read, whole};
use crate::narrow;
use crate::program::{Io, Program};

/// The most bytes of inputs that are put into place between two runs: commands carry them.
const MOST_BYTES: usize = 64 << 10;

/// Inputs, by their places, and where their bytes are among those gathered.
type Written = SmallVec<[(usize, Range<usize>); 8]>;

/// An input, by its place, that is what the run under way gives as an output.
struct Carried {
    input: usize,
    output: usize,
    ty: TensorType,
}

impl<D: Driver> GpuExecutable<D> {
    /// See [`tercet_ir::Executable::submit_behind`].
    pub(super) fn start_behind(
        &mut self,
        inputs: &[(&str, &Tensor)],
        carried: &[(&str, &str)],
        wanted: Wanted<'_>,
    ) -> Result<bool, RunError> {
        let program = Arc::clone(&self.program);
        let places = places(&program.signature, wanted)?;
        let Some(flight) = self.flight.as_ref() else {
            return Ok(false);
        };
        let (sizes, counts) = (flight.sizes.clone(), flight.counts);
        let carried = self.carried(&program, carried, &sizes)?;
        if self.behind.is_some() || !program.flow.is_empty() || !self.is_near(inputs, &carried) {
            return Ok(false);
        }
        if self.sizes_of(inputs, &carried)? != sizes {
            return Ok(false);
        }
        let (bytes, written) = self.encoded(&program, inputs)?;
        let mut puts: SmallVec<[Put<'_>; 8]> = SmallVec::new();
        for (at, range) in &written {
            let slot = program.slot(program.inputs[*at].slot);
            puts.push(Put::Bytes {
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
        self.changed |= self.compute(&program, random)?;
        let mut reads: SmallVec<[Read; 4]> = self.faults.into_iter().collect();
        let ranges = places
            .iter()
            .filter_map(|&place| whole(&program, &self.launch, &program.outputs[place]));
        reads.extend(ranges.filter(|r| r.bytes > 0));
        let driver = self.driver.get_mut();
        if !driver.submit_behind(&self.launch, self.changed, &puts, &reads)? {
            return Ok(false);
        }
        self.changed = false;
        for (at, _) in written {
            self.note_input(at, inputs);
        }
        for c in &carried {
            self.forget_input(c.input);
        }
        self.behind = Some(Flight {
            wanted: places,
            sizes,
            counts: true,
        });
        Ok(true)
    }

    /// The inputs that are carried on, checked.
    fn carried(
        &self,
        program: &Program,
        names: &[(&str, &str)],
        sizes: &Bindings,
    ) -> Result<SmallVec<[Carried; 2]>, RunError> {
        let signature = &program.signature;
        let carried = names.iter().map(|(input, output)| {
            let (input, _) = find_port(&signature.inputs, "input", input)?;
            let (output, _) = find_port(&signature.outputs, "output", output)?;
            let ty = program.outputs[output].ty.eval(sizes)?;
            Ok(Carried { input, output, ty })
        });
        carried.collect()
    }

    /// Whether nothing but a few bytes of the host is to be put into place.
    fn is_near(&self, inputs: &[(&str, &Tensor)], carried: &[Carried]) -> bool {
        let ports = self.program.signature.inputs.iter().enumerate();
        let mut bytes = 0;
        for (at, port) in ports {
            if carried.iter().any(|c| c.input == at) {
                continue;
            }
            match inputs.iter().find(|(name, _)| *name == port.name) {
                Some((_, tensor)) => bytes += narrow::device_bytes(tensor.ty()),
                None if !self.has_bound(at) => return false,
                None => {}
            }
        }
        bytes <= MOST_BYTES
    }

    /// The sizes of a run with these inputs.
    fn sizes_of(
        &self,
        inputs: &[(&str, &Tensor)],
        carried: &[Carried],
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

    /// The bytes of inputs that the device does not hold yet, in whole words, and which they are.
    fn encoded(
        &mut self,
        program: &Program,
        inputs: &[(&str, &Tensor)],
    ) -> Result<(Vec<u8>, Written), RunError> {
        let (mut bytes, mut written) = (Vec::new(), SmallVec::new());
        for (at, port) in program.signature.inputs.iter().enumerate() {
            let Some((_, tensor)) = inputs.iter().find(|(name, _)| *name == port.name) else {
                continue;
            };
            if self.has_input(at, tensor) {
                continue;
            }
            let encoded = narrow::encode("input", &port.name, tensor, &mut self.scratch)?;
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

/// The copy of an output to where an input lies; none without elements.
fn copy<'a>(program: &Program, carried: &Carried) -> Option<Put<'a>> {
    let slot = |io: &Io| *program.slot(io.slot);
    let (from, to) = (
        slot(&program.outputs[carried.output]),
        slot(&program.inputs[carried.input]),
    );
    let bytes = narrow::device_bytes(&carried.ty).next_multiple_of(4) as u64;
    (bytes > 0).then_some(Put::Copy {
        from: Read {
            buffer: from.buffer,
            offset_bytes: from.offset_bytes,
            bytes,
        },
        buffer: to.buffer,
        offset_bytes: to.offset_bytes,
    })
}
