//! WGSL code generation of FFT kernels, one per length: unrolled radices in registers, and
//! exchanges through shared memory.

use std::fmt::Write as _;

use tercet_ir::DType;

use super::super::rows::WORKGROUP;
use super::super::{code, portable};
use crate::scalar::PRELUDE;

/// Kind of transform: complex, real to complex, or complex to real.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FftKind {
    Forward,
    Inverse,
    /// Real to complex: pairs of reals are packed into complex numbers. The result has
    /// `length / 2 + 1` elements, because the second half of the spectrum mirrors the first half.
    Reals,
    /// Complex to real: the inverse of `Reals`.
    ToReals,
    /// Like `Reals`, for frames of a signal that are multiplied by a window function (STFT).
    WindowedFrames,
}

impl FftKind {
    /// True if the kernel swaps real and imaginary parts before and after a forward transform,
    /// which yields the inverse transform.
    fn exchanges(self) -> bool {
        match self {
            FftKind::Inverse | FftKind::ToReals => true,
            FftKind::Forward | FftKind::Reals | FftKind::WindowedFrames => false,
        }
    }

    /// Number of reals that are packed into one complex number. The table contains the roots of
    /// unity for the complex length times this number.
    pub(super) fn reals(self) -> u32 {
        match self {
            FftKind::Forward | FftKind::Inverse => 1,
            FftKind::Reals | FftKind::ToReals | FftKind::WindowedFrames => 2,
        }
    }

    /// True if the store of the kernel recovers the spectrum of the reals from the half-length
    /// transform of the packed numbers.
    fn unpacks_real(self) -> bool {
        match self {
            FftKind::Reals | FftKind::WindowedFrames => true,
            FftKind::Forward | FftKind::Inverse | FftKind::ToReals => false,
        }
    }
}

/// The structure of the FFT kernel for rows of one length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FftKernelPlan {
    /// Length of the transform, in complex numbers.
    pub n: u32,
    /// The radix of each pass, in execution order; their product is the length.
    pub(super) radices: Vec<u32>,
    /// Threads per row, a power of two.
    pub threads: u32,
    /// True if shared memory has one unused element after every 16, which avoids bank conflicts of
    /// power-of-two strides.
    pub spread: bool,
}

impl FftKernelPlan {
    /// The kernel plan for a length. `None` if a row is too long for one workgroup, or if the
    /// length has a prime factor above 7.
    pub fn new(n: usize, workgroup_bytes: u32) -> Option<FftKernelPlan> {
        let places = workgroup_bytes / 8;
        // Number of complex numbers that each thread keeps in registers.
        let held = if places >= 16 * WORKGROUP { 16 } else { 8 };
        let n = u32::try_from(n)
            .ok()
            .filter(|n| (1..=held * WORKGROUP).contains(n))?;
        let radices = radices(n, held)?;
        let threads = n.div_ceil(held).next_power_of_two();
        let used = WORKGROUP / threads * n;
        let spread = used + used / 16 < places;
        Some(FftKernelPlan {
            n,
            radices,
            threads,
            spread,
        })
    }
}

/// Factors a length into radices: as few powers of two as possible, of similar size, then 7, 5 and
/// 3.
pub fn radices(n: u32, held: u32) -> Option<Vec<u32>> {
    let (twos, most) = (n.trailing_zeros(), held.trailing_zeros());
    let passes = twos.div_ceil(most);
    let mut radices: Vec<u32> = (0..passes)
        .map(|i| 1 << (twos / passes + u32::from(i < twos % passes)))
        .collect();
    let mut rest = n >> twos;
    for prime in [7, 5, 3] {
        while rest.is_multiple_of(prime) {
            radices.push(prime);
            rest /= prime;
        }
    }
    if radices.is_empty() {
        radices.push(1);
    }
    (rest == 1).then_some(radices)
}

impl FftKernelPlan {
    /// True if the kernel reads a table of roots of unity.
    pub(super) fn has_roots(&self, way: FftKind) -> bool {
        self.radices.len() > 1 || way.reals() > 1
    }
}

/// WGSL source of the FFT kernel for a plan.
pub(super) fn text(plan: &FftKernelPlan, dtype: DType, way: FftKind, across: bool) -> String {
    let mut text = [
        PRELUDE,
        portable!("halves.wgsl"),
        portable!("strided.wgsl"),
        portable!("fft_radix.wgsl"),
    ]
    .join("\n");
    text += &header(plan, dtype, way);
    let (threads, rows) = (plan.threads, WORKGROUP / plan.threads);
    let (thread, own_row) = match across {
        true => (format!("local / {rows}u"), format!("local % {rows}u")),
        false => (format!("local % {threads}u"), format!("local / {threads}u")),
    };
    let _ = write!(
        text,
        "
@compute @workgroup_size({WORKGROUP})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {{
    let thread = {thread};
    let own_row = {own_row};
    let row = flat_group(group, groups) * {rows}u + own_row;
    let is_row = row < p.rows;
    var start = 0u;
    if is_row {{
        start = row_start(row);
    }}
    let base = own_row * {n}u;
",
        n = plan.n
    );
    let mut before = 1;
    for pass in 0..plan.radices.len() {
        pass_text(&mut text, plan, way, pass, before);
        before *= plan.radices[pass];
    }
    if way.unpacks_real() {
        unpack_real_source(&mut text, plan);
    }
    text + "}\n"
}

fn header(plan: &FftKernelPlan, dtype: DType, way: FftKind) -> String {
    let mut text = String::from(
        "
struct Params {
    sizes: array<vec4<u32>, 2>,
    strides: array<vec4<u32>, 2>,
    kept: u32,
    offset: u32,
    rows: u32,
    stride: u32,
    scale: f32,
}

@group(0) @binding(0) var<uniform> p: Params;
",
    );
    let word = if dtype == DType::F32 {
        "vec2<u32>"
    } else {
        "u32"
    };
    let mut binding = 1;
    let mut bind = |text: &mut String, access: &str, name: &str, ty: &str| {
        let _ = writeln!(
            text,
            "@group(0) @binding({binding}) var<storage, {access}> {name}: array<{ty}>;"
        );
        binding += 1;
    };
    if way == FftKind::WindowedFrames {
        bind(&mut text, "read", "x", "u32");
        bind(&mut text, "read", "window", "u32");
    } else {
        bind(&mut text, "read", "x", word);
    }
    if plan.has_roots(way) {
        bind(&mut text, "read", "roots", "vec2<f32>");
    }
    bind(&mut text, "read_write", "y", word);
    text += &save_text(dtype, way);
    text += &match way {
        FftKind::Forward | FftKind::Inverse | FftKind::Reals => numbers_text(dtype, way),
        FftKind::ToReals => pack_real_source(plan, dtype),
        FftKind::WindowedFrames => frames_text(dtype),
    };
    if plan.radices.len() > 1 || way.unpacks_real() {
        let used = WORKGROUP / plan.threads * plan.n;
        let (places, place) = match plan.spread {
            true => (used + used / 16 + 1, "at + (at >> 4u)"),
            false => (used, "at"),
        };
        let _ = write!(
            text,
            "
var<workgroup> pool: array<vec2<f32>, {places}>;

fn place(at: u32) -> u32 {{
    return {place};
}}
"
        );
    }
    text
}

/// The WGSL type of a complex number in memory, and the WGSL expression that converts the loaded
/// value `word` to F32.
fn number(dtype: DType, word: &str) -> (&'static str, String) {
    match dtype {
        DType::F32 => ("vec2<u32>", format!("bitcast<vec2<f32>>({word})")),
        _ => ("u32", format!("two_of({word}, {}u)", code(dtype))),
    }
}

/// WGSL source of the functions that load complex numbers. The kernel issues all loads of a thread
/// before it converts the first value, because conversions may branch and would delay further
/// loads. For inverse transforms, the loads swap real and imaginary parts, and the stores swap them
/// back.
fn numbers_text(dtype: DType, way: FftKind) -> String {
    let parts = if way == FftKind::Inverse { ".yx" } else { "" };
    let (ty, value) = number(dtype, "found");
    format!(
        "
fn fetch(start: u32, k: u32) -> {ty} {{
    return x[start + k * p.stride];
}}

fn number(found: {ty}, k: u32) -> vec2<f32> {{
    return ({value}){parts};
}}
"
    )
}

fn save_text(dtype: DType, way: FftKind) -> String {
    let save = match dtype {
        DType::F32 => "bitcast<vec2<u32>>(v)".to_string(),
        _ => format!("two_bits(v, {}u)", code(dtype)),
    };
    let parts = if way.exchanges() { ".yx" } else { "" };
    format!(
        "
fn save(at: u32, a: vec2<f32>) {{
    let v = (p.scale * a){parts};
    y[at] = {save};
}}
"
    )
}

/// WGSL source that loads two adjacent elements of an STFT frame, at any alignment, and multiplies
/// them by the window function.
fn frames_text(dtype: DType) -> String {
    let (word, element) = match dtype {
        DType::F32 => ("at", "bitcast<f32>(word)".to_string()),
        _ => (
            "at / 2u",
            format!("half_of(word, at % 2u, {}u)", code(dtype)),
        ),
    };
    format!(
        "
struct Found {{
    at: vec2<u32>,
    words: vec2<u32>,
    weights: vec2<u32>,
}}

fn signal_at(at: u32) -> u32 {{
    return x[{word}];
}}

fn weight_at(at: u32) -> u32 {{
    return window[{word}];
}}

fn element(word: u32, at: u32) -> f32 {{
    return {element};
}}

fn fetch(start: u32, k: u32) -> Found {{
    let at = vec2<u32>(start + 2u * k * p.stride) + vec2<u32>(0u, p.stride);
    return Found(
        at,
        vec2<u32>(signal_at(at.x), signal_at(at.y)),
        vec2<u32>(weight_at(2u * k), weight_at(2u * k + 1u)),
    );
}}

fn number(found: Found, k: u32) -> vec2<f32> {{
    return vec2<f32>(
        element(found.words.x, found.at.x) * element(found.weights.x, 2u * k),
        element(found.words.y, found.at.y) * element(found.weights.y, 2u * k + 1u),
    );
}}
"
    )
}

/// WGSL source that packs the half spectrum of `2 h` reals into `h` complex numbers for an inverse
/// transform of length `h`. The generated code computes `(a + b) + i w^-k (a - b)` for `a = X[k]`
/// and `b = conj X[h - k]`, with real and imaginary parts swapped. The imaginary parts of the first
/// and the last element of the spectrum are ignored, because these elements are real.
fn pack_real_source(plan: &FftKernelPlan, dtype: DType) -> String {
    let (ty, a) = number(dtype, "found.a");
    let (_, b) = number(dtype, "found.b");
    format!(
        "
struct Found {{
    a: {ty},
    b: {ty},
    root: vec2<f32>,
}}

fn fetch(start: u32, k: u32) -> Found {{
    return Found(x[start + k * p.stride], x[start + ({h}u - k) * p.stride], roots[k]);
}}

fn number(found: Found, k: u32) -> vec2<f32> {{
    var a = {a};
    var b = {b};
    if k == 0u {{
        a.y = 0.0;
        b.y = 0.0;
    }}
    b.y = -b.y;
    let back = vec2<f32>(found.root.x, -found.root.y);
    return ((a + b) - turned(times(a - b, back))).yx;
}}
",
        h = plan.n
    )
}

/// WGSL source that recovers the spectrum of reals from the packed half-length transform in shared
/// memory. For a transform `Z` of length `h`, the generated code computes element `k` as `S + T`
/// and element `h - k` as `conj (S - T)`. Here `S = Z[k] + conj Z[h - k]` and `T = -i w^k (Z[k] -
/// conj Z[h - k])`.
fn unpack_real_source(text: &mut String, plan: &FftKernelPlan) {
    let _ = write!(
        text,
        "    workgroupBarrier();
    for (var k = thread; is_row && k <= {half}u; k += {threads}u) {{
        let a = pool[place(base + k)];
        let other = pool[place(base + select({h}u - k, 0u, k == 0u))];
        let b = vec2<f32>(other.x, -other.y);
        let s = a + b;
        let t = times(turned(a - b), roots[k]);
        let to = row * {bins}u;
        save(to + k, s + t);
        if 2u * k != {h}u {{
            save(to + {h}u - k, vec2<f32>(s.x - t.x, t.y - s.y));
        }}
    }}
",
        h = plan.n,
        half = plan.n / 2,
        bins = plan.n + 1,
        threads = plan.threads,
    );
}

/// WGSL source of one FFT pass; `before` is the product of the radices of all previous passes.
fn pass_text(text: &mut String, plan: &FftKernelPlan, way: FftKind, pass: usize, before: u32) {
    let (n, radix) = (plan.n, plan.radices[pass]);
    let (first, last) = (pass == 0, pass + 1 == plan.radices.len());
    let count = n / radix;
    let each = count.div_ceil(plan.threads);
    let whole = each * plan.threads == count;
    // WGSL condition that excludes threads without elements and, for accesses to global memory,
    // threads without a row.
    let guard = |v: &str, needs_row: bool| match (needs_row, whole) {
        (true, true) => "if is_row ".to_string(),
        (true, false) => format!("if is_row && j{v} < {count}u "),
        (false, true) => String::new(),
        (false, false) => format!("if j{v} < {count}u "),
    };
    let _ = writeln!(text, "    // Radix {radix} after {before}.");
    for b in 0..each {
        let v = format!("a{pass}_{b}");
        let guard = guard(&v, first);
        let _ = writeln!(text, "    let j{v} = thread + {}u;", b * plan.threads);
        let _ = writeln!(text, "    var {v}: array<vec2<f32>, {radix}>;");
        let _ = writeln!(text, "    {guard}{{");
        let at = |r: u32| format!("j{v} + {}u", r * count);
        if first {
            for r in 0..radix {
                let _ = writeln!(text, "        let f{r} = fetch(start, {});", at(r));
            }
        }
        for r in 0..radix {
            let from = match first {
                true => format!("number(f{r}, {})", at(r)),
                false => format!("pool[place(base + {})]", at(r)),
            };
            let _ = writeln!(text, "        {v}[{r}] = {from};");
        }
        if before > 1 {
            let step = way.reals() * (n / (before * radix));
            let _ = writeln!(text, "        let turn = (j{v} % {before}u) * {step}u;");
            for r in 1..radix {
                let _ = writeln!(text, "        let w{r} = {};", root(r));
                let _ = writeln!(text, "        {v}[{r}] = times({v}[{r}], w{r});");
            }
        }
        let _ = writeln!(text, "        {v} = dft{radix}({v});\n    }}");
    }
    // In a transform of reals, the last pass also writes its results to shared memory, where the
    // next step reads them to recover the spectrum.
    let saves = last && !way.unpacks_real();
    if !saves && !first {
        text.push_str("    workgroupBarrier();\n");
    }
    for b in 0..each {
        let v = format!("a{pass}_{b}");
        let guard = guard(&v, saves);
        let _ = writeln!(text, "    {guard}{{");
        let _ = writeln!(
            text,
            "        let to = (j{v} / {before}u) * {}u + j{v} % {before}u;",
            before * radix
        );
        for r in 0..radix {
            let at = format!("to + {}u", r * before);
            let _ = match saves {
                true => writeln!(text, "        save(row * {n}u + {at}, {v}[{r}]);"),
                false => writeln!(text, "        pool[place(base + {at})] = {v}[{r}];"),
            };
        }
        text.push_str("    }\n");
    }
    if !last {
        text.push_str("    workgroupBarrier();\n");
    }
}

/// WGSL expression for power `r` of a root of unity. Only few powers are loaded from the table; the
/// others are computed as products of loaded powers.
fn root(r: u32) -> String {
    match (r / 4 * 4, r % 4) {
        (0, 1) => "roots[turn]".to_string(),
        (0, 2) => "times(w1, w1)".to_string(),
        (0, 3) => "times(w2, w1)".to_string(),
        (12, 0) => "times(w8, w4)".to_string(),
        (from, 0) => format!("roots[turn * {from}u]"),
        (from, rest) => format!("times(w{from}, w{rest})"),
    }
}
