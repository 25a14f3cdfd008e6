//! The table of safetensors element types.

use std::fmt;

/// Declares [`SafeDtype`] with the names of the format and the bits of an element.
macro_rules! dtypes {
    ($($(#[$doc:meta])* $name:ident = $bits:literal;)*) => {
        /// The element types of the safetensors format.
        ///
        /// ```
        /// use tercet_files::SafeDtype;
        /// assert_eq!((SafeDtype::BF16.name(), SafeDtype::BF16.bits()), ("BF16", 16));
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(non_camel_case_types, reason = "the names are those of the file format")]
        pub enum SafeDtype { $($(#[$doc])* $name,)* }

        impl SafeDtype {
            /// Every dtype.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The name in files.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            /// Number of bits per element.
            #[must_use]
            pub const fn bits(self) -> u64 { match self { $(Self::$name => $bits,)* } }
        }
    };
}

dtypes! {
    /// One byte, 0 or 1.
    BOOL = 8;
    /// E2M1 floats, two per byte.
    F4 = 4;
    /// E2M3 floats of 6 bits.
    F6_E2M3 = 6;
    /// E3M2 floats of 6 bits.
    F6_E3M2 = 6;
    /// Unsigned 8-bit integers.
    U8 = 8;
    /// Signed 8-bit integers.
    I8 = 8;
    /// 8-bit floats, 5 bits of exponent.
    F8_E5M2 = 8;
    /// 8-bit floats, 4 bits of exponent.
    F8_E4M3 = 8;
    /// Powers of two (scales).
    F8_E8M0 = 8;
    /// `F8_E4M3` without negative zero and infinities.
    F8_E4M3FNUZ = 8;
    /// `F8_E5M2` without negative zero and infinities.
    F8_E5M2FNUZ = 8;
    /// Signed 16-bit integers.
    I16 = 16;
    /// Unsigned 16-bit integers.
    U16 = 16;
    /// IEEE 754 binary16.
    F16 = 16;
    /// bfloat16.
    BF16 = 16;
    /// Signed 32-bit integers.
    I32 = 32;
    /// Unsigned 32-bit integers.
    U32 = 32;
    /// IEEE 754 binary32.
    F32 = 32;
    /// Pairs of binary32.
    C64 = 64;
    /// IEEE 754 binary64.
    F64 = 64;
    /// Signed 64-bit integers.
    I64 = 64;
    /// Unsigned 64-bit integers.
    U64 = 64;
}

impl fmt::Display for SafeDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
