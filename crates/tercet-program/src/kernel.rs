//! Kernel definitions: each declares the code, the parameter block and the arguments of a kernel in
//! one place.
//!
//! [`params!`](crate::params) declares a parameter block once. The macro generates the Rust struct
//! that a lowering fills in, and the (name, type, offset) of each field. A test compares these
//! fields with the parameter block that the shader declares. A [`TypedKernel`] has the type of its
//! parameter block as type parameter, so a dispatch with another block type does not compile.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::spirv_module::SpirvModule;
use crate::sym_int::SymInt;

/// The type of a field of a parameter block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldType {
    /// `u32`
    U32,
    /// `i32`
    I32,
    /// `f32`
    F32,
    /// `array<vec4<u32>, 2>`: eight words that start at a multiple of 16 bytes.
    U32x8,
}

impl FieldType {
    /// Size in bytes of a field of this type.
    pub const fn size_bytes(self) -> u32 {
        match self {
            FieldType::U32 | FieldType::I32 | FieldType::F32 => 4,
            FieldType::U32x8 => 32,
        }
    }
}

/// A field of a parameter block: name, type and offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamField {
    /// Name of the field in Rust and in the shader.
    pub name: &'static str,
    /// Type of the field.
    pub ty: FieldType,
    /// Offset of the field from the start of the block, in bytes.
    pub offset_bytes: u32,
}

/// Computes the field offsets of a parameter block: first the fields of the extended block `base`,
/// then the block's own fields. `N` is the total number of fields. Eight-word fields must come
/// first, so that no field needs padding.
pub const fn layout<const N: usize>(
    base: &[ParamField],
    fields: &[(&'static str, FieldType)],
) -> [ParamField; N] {
    let mut out = [ParamField {
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
        out[i] = ParamField {
            name,
            ty,
            offset_bytes: at,
        };
        at += ty.size_bytes();
        i += 1;
    }
    out
}

/// One 32-bit word of a parameter block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ParamWord {
    /// An integer, stored as `u32` or as two's complement `i32`.
    SymInt(SymInt),
    /// A float, stored as its `f32` bits.
    F32(f32),
}

/// A Rust value that fills a field of a parameter block.
pub trait FieldValue {
    /// Appends the words of the value to the parameter block.
    fn push(&self, words: &mut Vec<ParamWord>);
}

impl FieldValue for SymInt {
    fn push(&self, words: &mut Vec<ParamWord>) {
        words.push(ParamWord::SymInt(*self));
    }
}

impl FieldValue for f32 {
    fn push(&self, words: &mut Vec<ParamWord>) {
        words.push(ParamWord::F32(*self));
    }
}

impl FieldValue for [SymInt; 8] {
    fn push(&self, words: &mut Vec<ParamWord>) {
        words.extend(self.iter().map(|n| ParamWord::SymInt(*n)));
    }
}

/// A parameter block, declared by [`params!`](crate::params).
pub trait ParamBlock {
    /// The fields in declaration order.
    const FIELDS: &'static [ParamField];

    /// The words of the parameter block in memory order.
    fn words(&self) -> Vec<ParamWord>;
}

/// Declares parameter blocks with fields of type `U32`, `I32`, `F32` and `U32x8`. A parameter block
/// that extends another one names it first: `..base: OtherParams,`.
///
/// ```
/// tercet_program::params! {
///     /// The block of `softmax.wgsl`.
///     pub struct SoftmaxParams {
///         rows: U32,
///         scale: F32,
///     }
/// }
/// // Expands to `pub struct SoftmaxParams { pub rows: SymInt, pub scale: f32 }` and `impl ParamBlock`.
/// let p = SoftmaxParams { rows: tercet_program::SymInt::ONE, scale: 1.0 };
/// assert_eq!(tercet_program::ParamBlock::words(&p).len(), 2);
/// ```
#[macro_export]
macro_rules! params {
    ($($(#[$m:meta])* pub struct $P:ident {
        $(..$base:ident: $B:ident,)? $($f:ident: $t:ident),* $(,)?
    })*) => {$(
        $(#[$m])*
        #[derive(Clone, Debug)]
        #[allow(missing_docs, reason = "the shader documents its parameters")]
        #[allow(unreachable_pub, reason = "lowerings are private, blocks of tests are not")]
        pub struct $P { $(pub $base: $B,)? $(pub $f: $crate::field_value!($t)),* }
        impl $crate::ParamBlock for $P {
            const FIELDS: &'static [$crate::ParamField] = {
                const BASE: &[$crate::ParamField] = {
                    let lists: &[&[$crate::ParamField]] = &[$(<$B as $crate::ParamBlock>::FIELDS)?];
                    match lists {
                        [base, ..] => *base,
                        [] => &[],
                    }
                };
                const OWN: &[(&str, $crate::FieldType)] = &[
                    $((stringify!($f), $crate::FieldType::$t)),*
                ];
                const ALL: [$crate::ParamField; BASE.len() + OWN.len()] =
                    $crate::kernel::layout(BASE, OWN);
                &ALL
            };
            fn words(&self) -> Vec<$crate::ParamWord> {
                let mut words = Vec::new();
                $(words.extend($crate::ParamBlock::words(&self.$base));)?
                $($crate::kernel::FieldValue::push(&self.$f, &mut words);)*
                words
            }
        }
    )*};
}

/// Maps a field type of [`params!`](crate::params) to its Rust type.
#[doc(hidden)]
#[macro_export]
macro_rules! field_value {
    (U32) => {
        $crate::SymInt
    };
    (I32) => {
        $crate::SymInt
    };
    (F32) => {
        f32
    };
    (U32x8) => {
        [$crate::SymInt; 8]
    };
}

/// Access mode of a kernel argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ArgAccess {
    /// The kernel only reads the argument.
    Read,
    /// The kernel writes the argument. A kernel may also read elements of an argument with this
    /// access mode.
    Write,
}

/// Code of a kernel: WGSL or SPIR-V.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelCode {
    /// WGSL fragments that are concatenated. Each kernel instance replaces the value in the lines
    /// `override NAME: u32 = n;`.
    Wgsl(&'static [&'static str]),
    /// A SPIR-V module; [`KernelDef::consts`] names its specialization constants 0, 1, ... in
    /// order.
    SpirV(SpirvModule),
}

/// Definition of a kernel; a [`KernelInstance`] adds the values of its specialization constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelDef {
    /// Name of the kernel, unique among all kernels.
    pub name: &'static str,
    /// Code of the kernel; the entry point is `main`.
    pub code: KernelCode,
    /// Access modes of the arguments, which are bound from binding 1 on.
    pub args: &'static [ArgAccess],
    /// Names of the specialization constants.
    pub consts: &'static [&'static str],
    /// Fields of the parameter block at binding 0.
    pub fields: &'static [ParamField],
}

/// A kernel definition that has the type of its parameter block as type parameter.
#[derive(Debug)]
pub struct TypedKernel<P: ParamBlock> {
    /// The untyped definition.
    pub def: KernelDef,
    block: PhantomData<fn(P)>,
}

/// Concatenates lists of constant names at compile time: `kernel_names![SUMS, BLOCKS, &["ROWS"]]`.
#[doc(hidden)]
#[macro_export]
macro_rules! kernel_names {
    ($($list:expr),+ $(,)?) => {{
        const LISTS: &[&[&str]] = &[$($list),+];
        const NAMES: [&str; $crate::kernel::count(LISTS)] = $crate::kernel::concat_names(LISTS);
        &NAMES
    }};
}

#[doc(hidden)]
/// Total number of names in the lists.
pub const fn count(lists: &[&[&str]]) -> usize {
    let (mut at, mut count) = (0, 0);
    while at < lists.len() {
        count += lists[at].len();
        at += 1;
    }
    count
}

#[doc(hidden)]
/// All names of the lists, concatenated; `N` is their total number.
pub const fn concat_names<const N: usize>(lists: &[&[&'static str]]) -> [&'static str; N] {
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

impl<P: ParamBlock> TypedKernel<P> {
    /// Defines a kernel whose source is the concatenation of WGSL fragments.
    pub const fn wgsl(
        name: &'static str,
        pieces: &'static [&'static str],
        args: &'static [ArgAccess],
        consts: &'static [&'static str],
    ) -> TypedKernel<P> {
        TypedKernel::new(name, KernelCode::Wgsl(pieces), args, consts)
    }

    /// Defines a kernel whose code is a SPIR-V module.
    pub const fn spirv(
        name: &'static str,
        module: SpirvModule,
        args: &'static [ArgAccess],
        consts: &'static [&'static str],
    ) -> TypedKernel<P> {
        TypedKernel::new(name, KernelCode::SpirV(module), args, consts)
    }

    const fn new(
        name: &'static str,
        code: KernelCode,
        args: &'static [ArgAccess],
        consts: &'static [&'static str],
    ) -> TypedKernel<P> {
        TypedKernel {
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

/// Code of a kernel instance, ready for a GPU runtime.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KernelSource {
    /// A complete WGSL module with the entry point `main`. The code of the kernel itself keeps its
    /// memory accesses within bounds.
    Wgsl(Arc<str>),
    /// A complete WGSL module supplied by the user. The GPU runtime must add bounds checks to its
    /// memory accesses and limits to its loops.
    UserWgsl {
        /// WGSL source of the module.
        text: Arc<str>,
        /// Name of the entry point.
        entry: Arc<str>,
    },
    /// A SPIR-V module and the values of its specialization constants 0, 1, ...
    SpirV {
        /// The SPIR-V module.
        module: SpirvModule,
        /// Values of the module's specialization constants, in order.
        constants: Vec<u32>,
    },
}

/// A kernel with values for its specialization constants, or a kernel generated for a fusion group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KernelInstance {
    /// Kernel name plus the names and values of its specialization constants, such as `softmax
    /// x=f32 y=f16`.
    pub name: String,
    /// Code of the instance.
    pub source: KernelSource,
    /// Access modes of the arguments, which are bound from binding 1 on.
    pub args: Vec<ArgAccess>,
    /// Size of the parameter block at binding 0 in bytes; 0 if there is none.
    pub block_bytes: u32,
}

impl KernelInstance {
    /// Creates the instance of a kernel with these values of its specialization constants.
    ///
    /// # Panics
    /// If the number of values is not the number of the kernel's constants, or if a WGSL kernel
    /// lacks the declaration of a constant. Both cases are bugs of a lowering.
    pub fn new(def: &KernelDef, values: &[u32]) -> KernelInstance {
        assert_eq!(
            def.consts.len(),
            values.len(),
            "invariant: {} has the constants {:?}",
            def.name,
            def.consts
        );
        let mut name = def.name.to_string();
        for (constant, value) in def.consts.iter().zip(values) {
            name += &format!(" {constant}={value}");
        }
        let source = match def.code {
            KernelCode::Wgsl(pieces) => KernelSource::Wgsl(render(def, pieces, values).into()),
            KernelCode::SpirV(module) => KernelSource::SpirV {
                module,
                constants: values.to_vec(),
            },
        };
        KernelInstance {
            name,
            source,
            args: def.args.to_vec(),
            block_bytes: block_bytes(def.fields),
        }
    }
}

/// Size in bytes of a parameter block with these fields: a multiple of 16, as uniform blocks
/// require.
pub fn block_bytes(fields: &[ParamField]) -> u32 {
    fields.last().map_or(0, |f| {
        (f.offset_bytes + f.ty.size_bytes()).next_multiple_of(16)
    })
}

/// Returns the concatenated WGSL fragments of a kernel, with `override NAME: u32 = n;` replaced by
/// `const NAME: u32 = value;`.
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

impl fmt::Display for KernelInstance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
