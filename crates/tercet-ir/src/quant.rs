//! Block-quantised weights in the formats of GGUF.

use crate::dtype::DType;

/// Declares the schemes: variant, spelling, elements and bytes of a block.
macro_rules! schemes {
    ($($(#[$doc:meta])* $V:ident $name:literal $len:literal $bytes:literal),* $(,)?) => {
        crate::spelled! {
            /// A block format of packed weights.
            pub enum Scheme { $($(#[$doc])* $V $name),* }
        }
        impl Scheme {
            /// Elements of a block.
            pub const fn block_len(self) -> usize { match self { $(Self::$V => $len),* } }
            /// Bytes of a block.
            pub const fn block_bytes(self) -> usize { match self { $(Self::$V => $bytes),* } }
        }
    };
}

schemes! {
    /// IEEE binary16, not packed.
    F16 "f16" 1 2,
    /// bfloat16, not packed.
    BF16 "bf16" 1 2,
    /// 4 bits, one f16 scale for 32.
    Q4_0 "q4_0" 32 18,
    /// 4 bits, f16 scale and minimum for 32.
    Q4_1 "q4_1" 32 20,
    /// 5 bits, one f16 scale for 32.
    Q5_0 "q5_0" 32 22,
    /// 5 bits, f16 scale and minimum for 32.
    Q5_1 "q5_1" 32 24,
    /// 8 bits, one f16 scale for 32.
    Q8_0 "q8_0" 32 34,
    /// 2 bits, 4-bit scales and minima for 16, f16 super-scales for 256.
    Q2K "q2_k" 256 84,
    /// 3 bits, 6-bit scales for 16, an f16 super-scale for 256.
    Q3K "q3_k" 256 110,
    /// 4 bits, 6-bit scales and minima for 32, f16 super-scales for 256.
    Q4K "q4_k" 256 144,
    /// 5 bits, 6-bit scales and minima for 32, f16 super-scales for 256.
    Q5K "q5_k" 256 176,
    /// 6 bits, 8-bit scales for 16, an f16 super-scale for 256.
    Q6K "q6_k" 256 210,
}

impl Scheme {
    /// The dtype of the tensor that holds weights of this scheme: the float itself for `F16` and
    /// `BF16`, bytes `[.., row_bytes]` for packed blocks.
    pub const fn storage(self) -> DType {
        match self {
            Scheme::F16 => DType::F16,
            Scheme::BF16 => DType::BF16,
            Scheme::Q4_0
            | Scheme::Q4_1
            | Scheme::Q5_0
            | Scheme::Q5_1
            | Scheme::Q8_0
            | Scheme::Q2K
            | Scheme::Q3K
            | Scheme::Q4K
            | Scheme::Q5K
            | Scheme::Q6K => DType::U8,
        }
    }
}
