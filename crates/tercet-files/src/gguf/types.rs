//! The table of ggml tensor types: id, name, block length and block size.
//!
//! `inspect` can name every type. The conversion of a tensor decides whether its type is supported
//! for computation, so a file with unsupported tensors still opens.

/// Declares [`GgmlType`], its list and its properties from one table.
///
/// `F16 = 1, 1, 2, "..";` becomes the variant `GgmlType::F16`, an entry of `GgmlType::ALL`, and one
/// match arm in each of `id`, `name`, `block_len` and `block_bytes`.
macro_rules! ggml_types {
    ($($(#[$doc:meta])* $name:ident = $id:literal, $len:literal, $bytes:literal;)*) => {
        /// The storage format of a tensor's elements (the `ggml_type` of the GGUF specification).
        ///
        /// ```
        /// use tercet_files::GgmlType;
        /// assert_eq!((GgmlType::Q4_K.block_len(), GgmlType::Q4_K.block_bytes()), (256, 144));
        /// assert_eq!(GgmlType::from_id(1), Some(GgmlType::F16));
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(non_camel_case_types, reason = "the names are those of the file format")]
        pub enum GgmlType { $($(#[$doc])* $name,)* }

        impl GgmlType {
            /// Every type, in id order.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The id of this type in files.
            #[must_use]
            pub const fn id(self) -> u32 { match self { $(Self::$name => $id,)* } }

            /// The name, in the spelling of quantization tools.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            /// Number of elements per block; a row is a whole number of blocks.
            #[must_use]
            pub const fn block_len(self) -> u64 { match self { $(Self::$name => $len,)* } }

            /// Size of one block, in bytes.
            #[must_use]
            pub const fn block_bytes(self) -> u64 { match self { $(Self::$name => $bytes,)* } }
        }
    };
}

ggml_types! {
    /// IEEE 754 binary32.
    F32 = 0, 1, 4;
    /// IEEE 754 binary16.
    F16 = 1, 1, 2;
    /// 4 bits, one F16 scale per 32.
    Q4_0 = 2, 32, 18;
    /// 4 bits, F16 scale and minimum per 32.
    Q4_1 = 3, 32, 20;
    /// 5 bits, one F16 scale per 32.
    Q5_0 = 6, 32, 22;
    /// 5 bits, F16 scale and minimum per 32.
    Q5_1 = 7, 32, 24;
    /// 8 bits, one F16 scale per 32.
    Q8_0 = 8, 32, 34;
    /// 8 bits with the block's sum: an intermediate format of dot products, not used in files.
    Q8_1 = 9, 32, 36;
    /// 2-bit super-block of 256.
    Q2_K = 10, 256, 84;
    /// 3-bit super-block of 256.
    Q3_K = 11, 256, 110;
    /// 4-bit super-block of 256.
    Q4_K = 12, 256, 144;
    /// 5-bit super-block of 256.
    Q5_K = 13, 256, 176;
    /// 6-bit super-block of 256.
    Q6_K = 14, 256, 210;
    /// 8-bit super-block of 256: an intermediate format of dot products, not used in files.
    Q8_K = 15, 256, 292;
    /// 2.06 bits, lattice codebook.
    IQ2_XXS = 16, 256, 66;
    /// 2.31 bits, lattice codebook.
    IQ2_XS = 17, 256, 74;
    /// 3.06 bits, lattice codebook.
    IQ3_XXS = 18, 256, 98;
    /// 1.56 bits, lattice codebook.
    IQ1_S = 19, 256, 50;
    /// 4 bits, non-linear levels, per 32.
    IQ4_NL = 20, 32, 18;
    /// 3.44 bits, lattice codebook.
    IQ3_S = 21, 256, 110;
    /// 2.5 bits, lattice codebook.
    IQ2_S = 22, 256, 82;
    /// 4.25 bits, non-linear levels, super-block of 256.
    IQ4_XS = 23, 256, 136;
    /// Signed 8-bit integers.
    I8 = 24, 1, 1;
    /// Signed 16-bit integers.
    I16 = 25, 1, 2;
    /// Signed 32-bit integers.
    I32 = 26, 1, 4;
    /// Signed 64-bit integers.
    I64 = 27, 1, 8;
    /// IEEE 754 binary64.
    F64 = 28, 1, 8;
    /// 1.75 bits, lattice codebook.
    IQ1_M = 29, 256, 56;
    /// bfloat16.
    BF16 = 30, 1, 2;
    /// Ternary, 1.69 bits.
    TQ1_0 = 34, 256, 54;
    /// Ternary, 2.06 bits.
    TQ2_0 = 35, 256, 66;
    /// OCP microscaling FP4 (E2M1 elements, E8M0 scale per 32).
    MXFP4 = 39, 32, 17;
    /// NVFP4: E2M1 elements, one E4M3 scale per 16.
    NVFP4 = 40, 64, 36;
    /// 1 bit, one F16 scale per 128.
    Q1_0 = 41, 128, 18;
    /// 2 bits, one F16 scale per 64.
    Q2_0 = 42, 64, 18;
}

/// Ids of removed types, which only files of old tools have.
const REMOVED: &[(u32, &str)] = &[
    (4, "Q4_2"),
    (5, "Q4_3"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (36, "IQ4_NL_4_4"),
    (37, "IQ4_NL_4_8"),
    (38, "IQ4_NL_8_8"),
];

impl GgmlType {
    /// The type with this id, if the format has it.
    #[must_use]
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.iter().copied().find(|ty| ty.id() == id)
    }

    /// The name of the removed type with this id, if there was one.
    #[must_use]
    pub fn removed_name(id: u32) -> Option<&'static str> {
        REMOVED
            .iter()
            .find(|(removed, _)| *removed == id)
            .map(|(_, name)| *name)
    }
}

impl std::fmt::Display for GgmlType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
