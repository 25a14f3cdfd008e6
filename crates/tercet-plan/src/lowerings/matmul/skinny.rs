//! Two to eight rows times weights, on matrices of F16 that invocations fill themselves.
//!
//! A device says nothing of how the elements of a matrix lie over a subgroup; where they lie as these kernels
//! expect, which [`lanes`](crate::lanes) finds out, weights go from memory to registers to products and
//! each is decoded once for all rows. The header of `shaders/vulkan/include/few_rows_common.glsl` has the formulas.
//! Rows are held in registers where a workgroup has few columns; where it has many, they go through shared memory
//! (`skinny_streamed.rs`) and leave the registers to weights.

use tercet_ir::{CompileError, DType, Dim, Scheme};

use super::portable::Given;
use super::product::Product;
use super::skinny_streamed::{self as streamed, FAT, SLIM, Stream};
use crate::caps::Caps;
use crate::emit::Emit;
use crate::families::dequant::Blocks;
use crate::families::gemm_coop::module;
use crate::kernel::{Access, Kernel};
use crate::num::Num;

crate::params! {
    /// The block of `few_rows_common.glsl`.
    pub struct FewRowsParams {
        m: U32,
        n: U32,
        k: U32,
        blocks: U32,
        a_offset: U32,
        a_row: U32,
        b_offset: U32,
        b_col: U32,
        bias_offset: U32,
        bias_row: U32,
        bias_stride: U32,
        zero: U32,
    }
}

/// Rows, weights, what is added, results.
pub(super) const ARGS: &[Access] = &[Access::Read, Access::Read, Access::Read, Access::Write];

/// The kernels of all formats where rows are in one place: `few_rows!("few_rows", "PASS")`, the beginning of their names
/// and files, what their third constant is, and what they have after those that all have.
macro_rules! few_rows {
    ($way:literal, $third:literal $(, $last:literal)*) => {
        few_rows!(
            @ [
                "THREADS", "TILES", $third, "ROUNDS", "ROWS", "WHOLE", "BIAS", "ACTIVATION", "A_TYPE", "Y_TYPE",
                "GATED" $(, $last)*
            ],
            $way, F16 "_f16", Q4_0 "_q4_0", Q8_0 "_q8_0", Q4_K "_q4_k", Q6_K "_q6_k"
        );
    };
    (@ $consts:tt, $way:literal, $($name:ident $format:literal),*) => {
        $(pub(super) static $name: Kernel<FewRowsParams> = Kernel::spirv(
            concat!($way, $format),
            module!(concat!($way, $format, ".spv")),
            ARGS,
            &$consts,
        );)*

        #[cfg(test)]
        pub(super) static ALL: &[&Kernel<FewRowsParams>] = &[$(&$name),*];
    };
}

pub(super) use few_rows;

few_rows!("few_rows", "PASS");

/// The kernels of a format.
struct Format {
    held: &'static Kernel<FewRowsParams>,
    streamed: &'static Kernel<FewRowsParams>,
    /// The shortest chunk of the latter.
    least_chunk: u32,
    /// Registers of its invocations with one number of F16 for each element of rows, and with two.
    registers: [u32; 2],
}

impl Format {
    const fn of(
        held: &'static Kernel<FewRowsParams>,
        streamed: &'static Kernel<FewRowsParams>,
        registers: [u32; 2],
    ) -> Format {
        Format {
            held,
            streamed,
            least_chunk: 1,
            registers,
        }
    }
}

static FLOATS: Format = Format::of(&F16, &streamed::F16, [FAT, FAT]);

static OF_SCHEMES: [(Scheme, Format); 4] = [
    (
        Scheme::Q4_0,
        Format::of(&Q4_0, &streamed::Q4_0, [SLIM, SLIM]),
    ),
    (Scheme::Q8_0, Format::of(&Q8_0, &streamed::Q8_0, [FAT, FAT])),
    (
        Scheme::Q4K,
        Format {
            // Minima take sums of half a block.
            least_chunk: 4,
            ..Format::of(&Q4_K, &streamed::Q4_K, [FAT, FAT])
        },
    ),
    (Scheme::Q6K, Format::of(&Q6_K, &streamed::Q6_K, [SLIM, FAT])),
];

/// Columns of a matrix of weights.
pub(super) const TILE: u32 = 16;
/// The part of k that a subgroup has at a time.
pub(super) const SLICE: usize = 256;
/// Invocations of a subgroup.
pub(super) const SUBGROUP: u32 = 32;
/// Registers of an invocation that holds rows, half of them for these.
const REGISTERS: u32 = 128;
/// Sums of a tile and a subgroup, with what keeps their columns apart in shared memory.
const SHARE_BYTES: u32 = 4 * 8 * (TILE + 4);
/// Elements of rows that are read at a time, and of weights.
pub(super) const ROW_LOAD: u64 = 4;
const FLOAT_LOAD: u64 = 8;
pub(super) const BLOCK_LOAD: u64 = 16;

/// The most subgroups of a workgroup that has a unit for itself, with so many registers an invocation.
pub(super) fn most_subgroups(caps: &Caps, registers: u32) -> u32 {
    (caps.device.unit_invocations(registers) / SUBGROUP).max(1)
}

/// A product that the kernels of a format take.
pub(super) struct Few {
    format: &'static Format,
    /// Columns, with those of a gate, and the summed size.
    sizes: [usize; 2],
    /// Blocks of a row of weights; 0 where there are none.
    blocks: usize,
    /// Rows that the kernel has sums for, 4 or 8.
    rows: u32,
    /// The shortest chunk of streamed rows, and the registers that they take.
    limits: [u32; 2],
}

/// The same with rows in their place.
pub(super) struct Placed {
    kernel: &'static Kernel<FewRowsParams>,
    blocks: usize,
    way: Way,
    rows: u32,
}

/// Where rows are.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Held(HeldSplit),
    Streamed(Stream),
}

/// How columns and k are shared where rows are held.
#[derive(Clone, Copy, Debug, PartialEq)]
struct HeldSplit {
    subgroups: u32,
    /// Tiles of a workgroup, and how many of them wait to be stored at once.
    tiles: u32,
    pass: u32,
    /// How often the subgroups take their parts of k.
    rounds: u32,
    /// These parts are all of k, no more.
    is_whole: bool,
}

impl HeldSplit {
    fn of(caps: &Caps, [n, k]: [usize; 2]) -> Option<HeldSplit> {
        let slices = k.div_ceil(SLICE);
        let of_unit = most_subgroups(caps, REGISTERS) as usize;
        let most = (caps.max_workgroup / SUBGROUP) as usize;
        let rounds = slices.div_ceil(most.clamp(1, of_unit));
        let subgroups = slices.div_ceil(rounds);
        let together = (of_unit / subgroups).max(1);
        let tiles = n.div_ceil(TILE as usize).div_ceil(caps.units() * together);
        let bytes = caps.workgroup_bytes / together as u32;
        let most = (bytes / (subgroups as u32 * SHARE_BYTES)) as usize;
        let passes = tiles.div_ceil(most.max(1));
        (most > 0).then(|| HeldSplit {
            subgroups: subgroups as u32,
            tiles: tiles as u32,
            pass: tiles.div_ceil(passes) as u32,
            rounds: rounds as u32,
            is_whole: subgroups * rounds * SLICE == k,
        })
    }

    /// From THREADS to ROUNDS, and WHOLE.
    fn consts(self) -> ([u32; 4], bool) {
        let threads = self.subgroups * SUBGROUP;
        ([threads, self.tiles, self.pass, self.rounds], self.is_whole)
    }
}

impl Few {
    /// How the floats of a product are taken; none where they are not. A run has up to `rows` rows.
    pub(super) fn floats(
        e: &Emit<'_>,
        p: &Product,
        rows: u32,
    ) -> Result<Option<Few>, CompileError> {
        let k = p.k.known().unwrap_or(0);
        let whole = k.is_multiple_of(FLOAT_LOAD as usize) && p.b.is_multiple(FLOAT_LOAD, p.b.own);
        match p.b.dtype == DType::F16 && p.b.summed.unit && whole {
            true => Few::with(e, p, rows, &FLOATS, 0),
            false => Ok(None),
        }
    }

    /// The same for weights in blocks.
    pub(super) fn packed(
        e: &Emit<'_>,
        p: &Product,
        blocks: &Blocks,
        rows: u32,
    ) -> Result<Option<Few>, CompileError> {
        let found = OF_SCHEMES
            .iter()
            .find(|(scheme, _)| *scheme == blocks.scheme);
        let Some((_, format)) = found else {
            return Ok(None);
        };
        let k = p.k.known().unwrap_or(0);
        let is_apart = blocks.params.is_some() && p.b.is_multiple(BLOCK_LOAD, p.b.own);
        match is_apart {
            true => Few::with(e, p, rows, format, k / blocks.scheme.block_len()),
            false => Ok(None),
        }
    }

    fn with(
        e: &Emit<'_>,
        p: &Product,
        rows: u32,
        format: &'static Format,
        blocks: usize,
    ) -> Result<Option<Few>, CompileError> {
        let (n, k) = (e.bound(&p.columns())?, p.k.known().unwrap_or(0));
        let takes = rows > 1 && e.caps.coop_lanes;
        let is_matrix = p.batch.iter().all(Dim::is_one) && p.norm.is_none() && p.is_apart();
        let reads_rows = p.a.summed.unit && p.a.is_multiple(ROW_LOAD, p.a.own);
        if !takes || !is_matrix || !reads_rows || n == 0 || k == 0 {
            return Ok(None);
        }
        let n = n << u32::from(p.gate.is_some());
        let rows = if e.bound(&p.m)? <= 4 { 4 } else { 8 };
        let numbers = usize::from(p.a.dtype == DType::F32 && rows == 8);
        Ok(Some(Few {
            format,
            sizes: [n, k],
            blocks,
            rows,
            limits: [format.least_chunk, format.registers[numbers]],
        }))
    }

    /// With rows in registers or through shared memory; none where the device has too little of either.
    pub(super) fn with_rows(&self, caps: &Caps, is_streamed: bool) -> Option<Placed> {
        let placed = |kernel, way| Placed {
            kernel,
            blocks: self.blocks,
            way,
            rows: self.rows,
        };
        match is_streamed {
            true => Stream::of(caps, self.sizes, self.rows, self.limits)
                .map(|stream| placed(self.format.streamed, Way::Streamed(stream))),
            false => HeldSplit::of(caps, self.sizes)
                .map(|share| placed(self.format.held, Way::Held(share))),
        }
    }

    /// True if a unit has too few tiles to make up for rows that every workgroup brings through shared memory.
    pub(super) fn has_few_tiles(&self, caps: &Caps) -> bool {
        Stream::has_few_tiles(caps, self.sizes)
    }
}

impl Placed {
    /// Runs it.
    pub(super) fn dispatch(&self, e: &mut Emit<'_>, p: &Product, given: &Given) {
        let all = &given.params;
        let params = FewRowsParams {
            m: all.m,
            n: all.n,
            k: all.k,
            blocks: Num::Const(self.blocks as i64),
            a_offset: all.a_offset,
            a_row: all.a_row,
            b_offset: all.b_offset,
            b_col: all.b_col,
            bias_offset: all.bias_offset,
            bias_row: all.bias_row,
            bias_stride: all.bias_stride,
            zero: all.zero,
        };
        let (shares, is_whole) = match self.way {
            Way::Held(share) => share.consts(),
            Way::Streamed(stream) => stream.consts(),
        };
        let [_, tiles, ..] = shares;
        let mut consts = shares.to_vec();
        consts.extend([self.rows, u32::from(is_whole)]);
        consts.extend(given.consts); // BIAS to Y_TYPE
        consts.push(u32::from(p.gate.is_some()));
        if let Way::Streamed(stream) = self.way {
            consts.push(stream.chunk());
        }
        let groups = e.tape().ceil_div(all.n, tiles * TILE);
        let grid = e.flat_grid(groups);
        e.dispatch(self.kernel, &consts, &given.args, &params, grid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::gemm_coop;

    #[test]
    fn the_modules_declare_the_block_the_arguments_and_the_constants() {
        for kernel in ALL.iter().chain(streamed::ALL) {
            gemm_coop::tests::agrees(&kernel.def);
        }
    }
}
