//! Kernels: code, its parameter block and its arguments, declared together.
//!
//! [`params!`](crate::params) declares a block once: it yields the Rust struct whose values a family
//! fills in, and (name, type, offset) of each field, which a test compares with what the shader
//! declares. A [`Kernel`] carries the type of its block: dispatching it with another does not compile.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::num::Num;

/// The type of a field of a parameter block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldType {
    /// `u32`
    U32,
    /// `i32`
    I32,
    /// `f32`
    F32,
    /// `array<vec4<u32>, 2>`: eight words, at a multiple of 16 bytes.
    U32x8,
}

impl FieldType {
    /// Its size.
    pub const fn size_bytes(self) -> u32 {
        match self {
            FieldType::U32 | FieldType::I32 | FieldType::F32 => 4,
            FieldType::U32x8 => 32,
        }
    }
}

/// A field of a parameter block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name in Rust and in the shader.
    pub name: &'static str,
    /// Its type.
    pub ty: FieldType,
    /// Where it lies.
    pub offset_bytes: u32,
}

/// Places fields one after the other, after those of `base`; `N` is the number of both. Eight-word fields
/// come first, so that none needs padding.
pub const fn layout<const N: usize>(
    base: &[Field],
    fields: &[(&'static str, FieldType)],
) -> [Field; N] {
    let mut out = [Field {
        name: "",
        ty: FieldType::U32,
        offset_bytes: 0,
    }; N];
    let mut i = 0;
    let mut at = 0;
    while i < base.len() {
        out[i] = base[i];
        at = base[i].offset_bytes + base[i].ty.size_bytes();
        i += 1;
    }
    while i < N {
        let (name, ty) = fields[i - base.len()];
        assert!(
            !matches!(ty, FieldType::U32x8) || at % 16 == 0,
            "eight-word fields come first"
        );
        out[i] = Field {
            name,
            ty,
            offset_bytes: at,
        };
        at += ty.size_bytes();
        i += 1;
    }
    out
}

/// A word of a parameter block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Word {
    /// A whole number, as `u32` or two's complement `i32`.
    Num(Num),
    /// A float.
    F32(f32),
}

/// What a field of each type is filled with.
pub trait FieldValue {
    /// Appends its words.
    fn push(&self, words: &mut Vec<Word>);
}

impl FieldValue for Num {
    fn push(&self, words: &mut Vec<Word>) {
        words.push(Word::Num(*self));
    }
}

impl FieldValue for f32 {
    fn push(&self, words: &mut Vec<Word>) {
        words.push(Word::F32(*self));
    }
}

impl FieldValue for [Num; 8] {
    fn push(&self, words: &mut Vec<Word>) {
        words.extend(self.iter().map(|n| Word::Num(*n)));
    }
}

/// A parameter block; made by [`params!`](crate::params).
pub trait Params {
    /// The fields in order.
    const FIELDS: &'static [Field];

    /// The words in order.
    fn words(&self) -> Vec<Word>;
}

/// Declares parameter blocks. The types are `U32`, `I32`, `F32` and `U32x8`. A block that begins as another
/// one does names it first: `..base: OtherParams,`.
///
/// ```
/// tercet_plan::params! {
///     /// The block of `softmax.wgsl`.
///     pub struct SoftmaxParams {
///         rows: U32,
///         scale: F32,
///     }
/// }
/// // Expands to `pub struct SoftmaxParams { pub rows: Num, pub scale: f32 }` and `impl Params`.
/// let p = SoftmaxParams { rows: tercet_plan::Num::ONE, scale: 1.0 };
/// assert_eq!(tercet_plan::Params::words(&p).len(), 2);
/// ```
#[macro_export]
macro_rules! params {
    ($($(#[$m:meta])* pub struct $P:ident {
        $(..$base:ident: $B:ident,)? $($f:ident: $t:ident),* $(,)?
    })*) => {$(
        $(#[$m])*
        #[derive(Clone, Debug)]
        #[allow(missing_docs, reason = "the shader says what its parameters mean")]
        #[allow(unreachable_pub, reason = "families are private, blocks of tests are not")]
        pub struct $P { $(pub $base: $B,)? $(pub $f: $crate::field_value!($t)),* }
        impl $crate::Params for $P {
            const FIELDS: &'static [$crate::Field] = {
                const BASE: &[$crate::Field] = {
                    let lists: &[&[$crate::Field]] = &[$(<$B as $crate::Params>::FIELDS)?];
                    match lists {
                        [base, ..] => *base,
                        [] => &[],
                    }
                };
                const OWN: &[(&str, $crate::FieldType)] = &[
                    $((stringify!($f), $crate::FieldType::$t)),*
                ];
                const ALL: [$crate::Field; BASE.len() + OWN.len()] =
                    $crate::kernel::layout(BASE, OWN);
                &ALL
            };
            fn words(&self) -> Vec<$crate::Word> {
                let mut words = Vec::new();
                $(words.extend($crate::Params::words(&self.$base));)?
                $($crate::kernel::FieldValue::push(&self.$f, &mut words);)*
                words
            }
        }
    )*};
}

/// The Rust type of a field of [`params!`](crate::params).
#[doc(hidden)]
#[macro_export]
macro_rules! field_value {
    (U32) => {
        $crate::Num
    };
    (I32) => {
        $crate::Num
    };
    (F32) => {
        f32
    };
    (U32x8) => {
        [$crate::Num; 8]
    };
}

/// How a kernel uses an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Only reads it.
    Read,
    /// Writes it, and reads it at most where it writes.
    Write,
}

/// The code of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// Pieces of WGSL, joined; lines `override NAME: u32 = n;` are set for each instance.
    Wgsl(&'static [&'static str]),
    /// A SPIR-V module; `consts` are its specialization constants 0, 1, ... in order.
    SpirV(&'static [u8]),
}

/// What is known of a kernel apart from the values of its constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelDef {
    /// Its name, unique among kernels.
    pub name: &'static str,
    /// Its code; the entry point is `main`.
    pub code: Code,
    /// Its arguments, from binding 1.
    pub args: &'static [Access],
    /// The names of its constants.
    pub consts: &'static [&'static str],
    /// The fields of its parameter block at binding 0.
    pub fields: &'static [Field],
}

/// A kernel with the type of its parameter block.
#[derive(Debug)]
pub struct Kernel<P: Params> {
    /// What is known of it.
    pub def: KernelDef,
    block: PhantomData<fn(P)>,
}

/// Lists of names one after the other: `names![SUMS, BLOCKS, &["ROWS"]]`.
macro_rules! names {
    ($($list:expr),+ $(,)?) => {{
        const LISTS: &[&[&str]] = &[$($list),+];
        const NAMES: [&str; $crate::kernel::count(LISTS)] = $crate::kernel::joined(LISTS);
        &NAMES
    }};
}

pub(crate) use names;

/// How many names lists have together.
pub(crate) const fn count(lists: &[&[&str]]) -> usize {
    let (mut at, mut count) = (0, 0);
    while at < lists.len() {
        count += lists[at].len();
        at += 1;
    }
    count
}

/// All names of lists, `N` together.
pub(crate) const fn joined<const N: usize>(lists: &[&[&'static str]]) -> [&'static str; N] {
    let (mut names, mut end, mut at) = ([""; N], 0, 0);
    while at < lists.len() {
        let mut i = 0;
        while i < lists[at].len() {
            names[end] = lists[at][i];
            (end, i) = (end + 1, i + 1);
        }
        at += 1;
    }
    names
}

impl<P: Params> Kernel<P> {
    /// A kernel of these WGSL pieces.
    pub const fn wgsl(
        name: &'static str,
        pieces: &'static [&'static str],
        args: &'static [Access],
        consts: &'static [&'static str],
    ) -> Kernel<P> {
        Kernel::new(name, Code::Wgsl(pieces), args, consts)
    }

    /// A kernel of this SPIR-V module.
    pub const fn spirv(
        name: &'static str,
        module: &'static [u8],
        args: &'static [Access],
        consts: &'static [&'static str],
    ) -> Kernel<P> {
        Kernel::new(name, Code::SpirV(module), args, consts)
    }

    const fn new(
        name: &'static str,
        code: Code,
        args: &'static [Access],
        consts: &'static [&'static str],
    ) -> Kernel<P> {
        Kernel {
            def: KernelDef {
                name,
                code,
                args,
                consts,
                fields: P::FIELDS,
            },
            block: PhantomData,
        }
    }
}

/// The code of an instance, ready for a player.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// A whole WGSL module with the entry point `main`, which guards its accesses itself.
    Wgsl(Arc<str>),
    /// A whole WGSL module from outside. Players check its accesses and bound its loops.
    Checked {
        /// The module.
        text: Arc<str>,
        /// The name of its entry point.
        entry: Arc<str>,
    },
    /// A SPIR-V module and the values of its specialization constants 0, 1, ...
    SpirV {
        /// The module.
        module: &'static [u8],
        /// The values.
        constants: Vec<u32>,
    },
}

/// A kernel with the values of its constants, or one made for a fused region.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Instance {
    /// Its name with the values that tell it from its siblings, such as `softmax x=f32 y=f16`.
    pub name: String,
    /// Its code.
    pub source: Source,
    /// Its arguments, from binding 1.
    pub args: Vec<Access>,
    /// The size of its parameter block at binding 0; 0 for none.
    pub block_bytes: u32,
}

impl Instance {
    /// The instance of a kernel with these values of its constants.
    ///
    /// # Panics
    /// When the number of values is not that of the kernel's constants, or a WGSL kernel does not
    /// declare one: bugs of a family.
    pub fn of(def: &KernelDef, values: &[u32]) -> Instance {
        assert_eq!(
            def.consts.len(),
            values.len(),
            "invariant: {} takes the constants {:?}",
            def.name,
            def.consts
        );
        let mut name = def.name.to_string();
        for (constant, value) in def.consts.iter().zip(values) {
            name += &format!(" {constant}={value}");
        }
        let source = match def.code {
            Code::Wgsl(pieces) => Source::Wgsl(render(def, pieces, values).into()),
            Code::SpirV(module) => Source::SpirV {
                module,
                constants: values.to_vec(),
            },
        };
        Instance {
            name,
            source,
            args: def.args.to_vec(),
            block_bytes: block_bytes(def.fields),
        }
    }
}

/// The size of a block of these fields: whole 16-byte rows, as uniform blocks have.
pub fn block_bytes(fields: &[Field]) -> u32 {
    fields.last().map_or(0, |f| {
        (f.offset_bytes + f.ty.size_bytes()).next_multiple_of(16)
    })
}

/// The pieces joined, with `override NAME: u32 = n;` replaced by `const NAME: u32 = value;`.
fn render(def: &KernelDef, pieces: &[&str], values: &[u32]) -> String {
    let mut text = pieces.join("\n");
    for (name, value) in def.consts.iter().zip(values) {
        let head = format!("override {name}: u32 = ");
        let at = text
            .find(&head)
            .unwrap_or_else(|| panic!("invariant: {} declares `{head}`", def.name));
        let end = text[at..].find(';').map_or(text.len(), |e| at + e);
        text.replace_range(at..end, &format!("const {name}: u32 = {value}u"));
    }
    text
}

impl fmt::Display for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
