//! Parameters of packed blocks as the device holds them: in planes.
//!
//! Blocks have odd sizes (17, 34, 210 bytes), so that what one invocation reads hardly ever lies
//! at a multiple of 16 bytes. A parameter that nothing but decoding kernels reads is therefore written
//! field by field: of each row first the low bits of all its blocks, then their high bits, their packed
//! scales, their f16 scales. The bytes are the same, and they stay in their row, so that rows may still be
//! sliced, gathered and put behind each other; rows begin at multiples of 16 bytes.
//!
//! Inputs and states, and parameters that something else reads, stay in file order. Where a field lies in
//! either order is said here alone: [`fields`].

use std::collections::{HashMap, HashSet};
use std::thread;

use tercet_ir::layout::{Cut, SymLayout};
use tercet_ir::{DType, Dim, Graph, Node, NodeId, Op, Scheme, Value};

use crate::emit::all_known;

/// Rows in planes begin at multiples of so many bytes.
const ALIGN: usize = 16;

/// The greatest weight may be half of the largest F16, as a minimum may add to it, and should be well above
/// the subnormal ones.
const MOST_HALF: f64 = 32752.0;
const LEAST_HALF: f64 = 1.0 / 4096.0;

/// Bytes that are written at once.
const CHUNK_BYTES: usize = 8 << 20;
/// The most threads that put rows in planes: memory is the limit from here on.
const MAX_THREADS: usize = 8;
/// What a thread does at least: starting one takes as long as 100 KiB.
const THREAD_BYTES: usize = 512 << 10;

/// A part of a block: where the file has it, and its length; 0 where the scheme has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    at: usize,
    len: usize,
}

/// The low bits of a block, its high bits, its packed scales and its f16 scales, in this order of planes.
/// The f16 scales of Q4_K and Q5_K lie in front of the packed ones and count as part of them, as do zero
/// points and scales that are no f16; signs count as bits.
pub(crate) const fn fields(scheme: Scheme) -> [Field; 4] {
    const fn field(at: usize, len: usize) -> Field {
        Field { at, len }
    }
    const NONE: Field = field(0, 0);
    match scheme {
        Scheme::F16 | Scheme::BF16 => [NONE; 4],
        Scheme::Q4_0 => [field(2, 16), NONE, NONE, field(0, 2)],
        Scheme::Q4_1 => [field(4, 16), NONE, NONE, field(0, 4)],
        Scheme::Q5_0 => [field(6, 16), field(2, 4), NONE, field(0, 2)],
        Scheme::Q5_1 => [field(8, 16), field(4, 4), NONE, field(0, 4)],
        Scheme::Q8_0 => [field(2, 32), NONE, NONE, field(0, 2)],
        Scheme::Q2K => [field(16, 64), NONE, field(0, 16), field(80, 4)],
        Scheme::Q3K => [field(32, 64), field(0, 32), field(96, 12), field(108, 2)],
        Scheme::Q4K => [field(16, 128), NONE, field(0, 16), NONE],
        Scheme::Q5K => [field(48, 128), field(16, 32), field(0, 16), NONE],
        Scheme::Q6K => [field(0, 128), field(128, 64), field(192, 16), field(208, 2)],
        Scheme::Iq2Xxs => [field(2, 64), NONE, NONE, field(0, 2)],
        Scheme::Iq2Xs => [field(2, 64), NONE, field(66, 8), field(0, 2)],
        Scheme::Iq2S => [field(2, 64), field(66, 8), field(74, 8), field(0, 2)],
        Scheme::Iq3Xxs => [field(2, 64), field(66, 32), NONE, field(0, 2)],
        Scheme::Iq3S => [field(2, 64), field(66, 40), field(106, 4), field(0, 2)],
        Scheme::Iq1S => [field(2, 32), field(34, 16), NONE, field(0, 2)],
        Scheme::Iq1M => [field(0, 32), field(32, 16), field(48, 8), NONE],
        Scheme::Iq4Nl => [field(2, 16), NONE, NONE, field(0, 2)],
        Scheme::Iq4Xs => [field(8, 128), NONE, field(2, 6), field(0, 2)],
        Scheme::Tq1_0 => [field(0, 48), field(48, 4), NONE, field(52, 2)],
        Scheme::Tq2_0 => [field(0, 64), NONE, NONE, field(64, 2)],
        Scheme::Mxfp4 => [field(1, 16), NONE, field(0, 1), NONE],
        Scheme::Nvfp4 => [field(4, 32), NONE, field(0, 4), NONE],
        Scheme::Fp8E4m3 | Scheme::Fp8E5m2 => [field(4, 128), NONE, field(0, 4), NONE],
        Scheme::Int8 => [field(8, 128), NONE, NONE, field(0, 8)],
        Scheme::Int8Asym => [field(12, 128), NONE, field(8, 4), field(0, 8)],
        Scheme::Int4 => [field(8, 64), NONE, NONE, field(0, 8)],
        Scheme::Int4Asym => [field(12, 64), NONE, field(8, 4), field(0, 8)],
    }
}

/// For each field its first byte and the distance to that of the next block, as kernels take them: the
/// distance above 16 bits of the first byte. In planes the first byte counts for each block of the row.
pub(crate) fn places(scheme: Scheme, in_planes: bool) -> [u32; 4] {
    let mut before = 0;
    fields(scheme).map(|field| {
        let (first, step) = match in_planes {
            true => (before, field.len),
            false => (field.at, scheme.block_bytes()),
        };
        before += field.len;
        (first | step << 16) as u32
    })
}

/// Rows of packed blocks that lie in planes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planes {
    /// The format of the blocks.
    pub scheme: Scheme,
    /// The bytes of a row, without what follows it.
    pub row_bytes: usize,
}

impl Planes {
    /// The distance of rows.
    pub fn stride_bytes(&self) -> usize {
        self.row_bytes.next_multiple_of(ALIGN)
    }

    /// The shape of all that a tensor takes.
    pub(crate) fn stored(&self, shape: &[Dim]) -> Vec<Dim> {
        let mut stored = shape.to_vec();
        if let Some(last) = stored.last_mut() {
            *last = Dim::Known(self.stride_bytes());
        }
        stored
    }

    /// Where the rows lie in it; `None` when a stride overflows.
    pub(crate) fn layout(&self, shape: &[Dim]) -> Option<SymLayout> {
        let all = SymLayout::dense(&self.stored(shape))?;
        let whole = Cut {
            start: Dim::Known(0),
            step: 1,
        };
        all.slice(&vec![whole; shape.len()], shape)
    }

    /// Gives a tensor in this order, some rows at a time, with their first byte. `scratch` is reused.
    ///
    /// # Errors
    /// Those of `write`.
    pub(crate) fn write<E>(
        &self,
        file: &[u8],
        scratch: &mut Vec<u8>,
        mut write: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let stride = self.stride_bytes();
        let rows = (CHUNK_BYTES / stride).max(1);
        for (at, part) in file.chunks(rows * self.row_bytes).enumerate() {
            scratch.clear();
            scratch.resize(part.len() / self.row_bytes * stride, 0);
            self.split_all(part, scratch);
            write((at * rows * stride) as u64, scratch)?;
        }
        Ok(())
    }

    /// True if F16 has the weights of these blocks with about as many digits as it has of others: none is
    /// too large, and the largest are not tiny.
    pub(crate) fn fit_half(&self, file: &[u8]) -> bool {
        let greatest = self.scheme.greatest_scale(file);
        let most = greatest * self.scheme.greatest_code();
        (LEAST_HALF..=MOST_HALF).contains(&most) || greatest == 0.0
    }

    /// Whole rows, on several threads where there are many: a file that is mapped is read by this.
    fn split_all(&self, file: &[u8], out: &mut [u8]) {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let threads = cores.min(MAX_THREADS).min(file.len() / THREAD_BYTES).max(1);
        let rows = (file.len() / self.row_bytes).div_ceil(threads).max(1);
        let parts = file.chunks(rows * self.row_bytes);
        let split = |(part, to): (&[u8], &mut [u8])| {
            let to = to.chunks_exact_mut(self.stride_bytes());
            for (row, out) in part.chunks_exact(self.row_bytes).zip(to) {
                self.split(row, out);
            }
        };
        let mut pairs = parts.zip(out.chunks_mut(rows * self.stride_bytes()));
        let Some(first) = pairs.next() else { return };
        thread::scope(|scope| {
            for pair in pairs {
                scope.spawn(move || split(pair));
            }
            split(first);
        });
    }

    /// One row.
    fn split(&self, row: &[u8], out: &mut [u8]) {
        let size = self.scheme.block_bytes();
        let blocks = self.row_bytes / size;
        let mut first = 0;
        for Field { at, len } in fields(self.scheme) {
            if len == 0 {
                continue;
            }
            let plane = out[first..first + len * blocks].chunks_exact_mut(len);
            for (block, to) in row.chunks_exact(size).zip(plane) {
                to.copy_from_slice(&block[at..at + len]);
            }
            first += len * blocks;
        }
    }
}

/// The values that lie in planes: parameters of which only rows are taken, and these rows.
pub(crate) fn of(graph: &Graph) -> HashMap<Value, Planes> {
    let mut uses: HashMap<Value, Vec<(Value, usize)>> = HashMap::new();
    for (id, node) in graph.nodes() {
        for (at, v) in node.inputs.iter().enumerate() {
            uses.entry(*v)
                .or_default()
                .push((Value { node: id, port: 0 }, at));
        }
    }
    // What leaves the program is read in file order.
    for v in graph.results() {
        uses.remove(&v);
    }
    let packed = graph.nodes().filter(|(_, node)| {
        let ty = &node.outputs[0];
        matches!(node.op, Op::Param(_)) && ty.dtype == DType::U8 && all_known(&ty.shape)
    });
    let mut params: HashSet<Value> = packed.map(|(node, _)| Value { node, port: 0 }).collect();
    let mut reads = Reads {
        graph,
        uses,
        joins: HashMap::new(),
    };
    reads.joins = reads.joins_of(&params);
    // A parameter in file order keeps those that it is joined with in theirs.
    let mut asked: Vec<Value> = params.iter().copied().collect();
    while let Some(v) = asked.pop() {
        if reads.scheme(v).is_some() || !params.remove(&v) {
            continue;
        }
        for (to, _) in reads.uses.get(&v).into_iter().flatten() {
            if reads.joins.remove(&to.node).is_some() {
                asked.extend(&graph.node(to.node).inputs);
            }
        }
    }
    let mut found = HashMap::new();
    for v in params {
        let row_bytes = graph
            .ty(v)
            .shape
            .last()
            .and_then(|d| d.known())
            .unwrap_or(0);
        if row_bytes > 0
            && let Some(scheme) = reads.scheme(v)
        {
            reads.mark(v, Planes { scheme, row_bytes }, &mut found);
        }
    }
    found
}

/// Who reads what: the first result of each reader, and which operand it is.
struct Reads<'a> {
    graph: &'a Graph,
    uses: HashMap<Value, Vec<(Value, usize)>>,
    /// Concatenations of rows of parameters that may all lie in planes, and as what they are decoded.
    joins: HashMap<NodeId, Scheme>,
}

impl Reads<'_> {
    /// The concatenations of rows of these parameters that are decoded.
    fn joins_of(&self, params: &HashSet<Value>) -> HashMap<NodeId, Scheme> {
        let joins = self.graph.nodes().filter_map(|(id, node)| {
            let Op::Concat(o) = &node.op else { return None };
            let of_rows = o.axis + 1 < node.outputs[0].shape.len();
            let of_params = node.inputs.iter().all(|v| params.contains(v));
            let scheme = self.scheme(Value { node: id, port: 0 });
            Some((id, scheme.filter(|_| of_rows && of_params)?))
        });
        joins.collect()
    }

    /// The scheme as which all readers of the value, and of rows taken from it, decode it.
    fn scheme(&self, v: Value) -> Option<Scheme> {
        let uses = self.uses.get(&v)?;
        let mut schemes = uses.iter().map(|&(to, at)| {
            let node = self.graph.node(to.node);
            match &node.op {
                Op::DequantMatMul(o) if at == 1 => Some(o.scheme),
                Op::DequantGroupedMatMul(o) if at == 1 => Some(o.scheme),
                Op::Dequantize(o) => Some(o.scheme),
                Op::Concat(_) => self.joins.get(&to.node).copied(),
                _ if self.takes_rows(node, at) => self.scheme(to),
                _ => None,
            }
        });
        let first = schemes.next()??;
        schemes.all(|s| s == Some(first)).then_some(first)
    }

    fn mark(&self, v: Value, planes: Planes, found: &mut HashMap<Value, Planes>) {
        if found.insert(v, planes).is_some() {
            return;
        }
        for &(to, at) in self.uses.get(&v).into_iter().flatten() {
            let is_join = self.joins.contains_key(&to.node);
            if is_join || self.takes_rows(self.graph.node(to.node), at) {
                self.mark(to, planes, found);
            }
        }
    }

    /// True if the result of a node is whole rows of this operand, in the order of its bytes.
    fn takes_rows(&self, node: &Node, operand: usize) -> bool {
        let last = |v: Value| self.graph.ty(v).shape.len().saturating_sub(1);
        let [v, ..] = node.inputs[..] else {
            return false;
        };
        match &node.op {
            Op::Gather(o) => operand == 0 && o.axis < last(v),
            Op::Slice(o) => {
                let at = last(v);
                let ends = [self.graph.ty(v), &node.outputs[0]].map(|t| t.shape.last());
                o.steps.get(at) == Some(&1) && ends[0] == ends[1]
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_the_whole_block_and_planes_hold_every_byte() {
        let packed = Scheme::ALL.iter().filter(|s| s.storage() == DType::U8);
        for &scheme in packed {
            let size = scheme.block_bytes();
            let mut seen = vec![0; size];
            for Field { at, len } in fields(scheme) {
                seen[at..at + len].iter_mut().for_each(|n| *n += 1);
            }
            assert_eq!(seen, vec![1; size], "{}", scheme.name());
            let planes = Planes {
                scheme,
                row_bytes: 3 * size,
            };
            let file: Vec<u8> = (0..6 * size).map(|i| (i * 7 + i / 256) as u8).collect();
            let mut all = Vec::new();
            let done: Result<(), ()> = planes.write(&file, &mut Vec::new(), |at, bytes| {
                assert_eq!(at as usize, all.len());
                all.extend_from_slice(bytes);
                Ok(())
            });
            assert_eq!(done, Ok(()));
            assert_eq!(all.len(), 2 * planes.stride_bytes());
            let places = places(scheme, true);
            for (block, byte) in (0..6).flat_map(|b| (0..size).map(move |i| (b, i))) {
                let within = |f: &Field| (f.at..f.at + f.len).contains(&byte);
                let which = fields(scheme).iter().position(within).expect("a field");
                let (first, step) = (places[which] & 0xffff, places[which] >> 16);
                let row = block / 3 * planes.stride_bytes();
                let at = row + first as usize * 3 + step as usize * (block % 3) + byte
                    - fields(scheme)[which].at;
                assert_eq!(all[at], file[block * size + byte], "{}", scheme.name());
            }
        }
    }

    #[test]
    fn threads_put_rows_where_one_puts_them() {
        let scheme = Scheme::Q4K;
        let row_bytes = 9 * scheme.block_bytes();
        let planes = Planes { scheme, row_bytes };
        // Above what a thread does at least, in rows that no number of threads divides.
        let rows = 7 * THREAD_BYTES / row_bytes + 5;
        let file: Vec<u8> = (0..rows * row_bytes)
            .map(|i| (i * 7 + i / 256) as u8)
            .collect();
        let mut one = vec![0; rows * planes.stride_bytes()];
        let to = one.chunks_exact_mut(planes.stride_bytes());
        for (row, out) in file.chunks_exact(row_bytes).zip(to) {
            planes.split(row, out);
        }
        let mut all = vec![0; one.len()];
        planes.split_all(&file, &mut all);
        assert!(all == one);
    }
}
