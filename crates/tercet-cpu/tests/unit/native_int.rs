//! Elementwise functions of integers.

use tercet_cpu::internals::NativeInt;
use tercet_cpu::kernels::SimdLevel;
use tercet_ir::DType;
use tercet_ir::scalar::{BinaryFn, Scalar, ScalarOp, UnaryFn};

const BINARY: [BinaryFn; 12] = [
    BinaryFn::Add,
    BinaryFn::Sub,
    BinaryFn::Mul,
    BinaryFn::Div,
    BinaryFn::Rem,
    BinaryFn::Max,
    BinaryFn::Min,
    BinaryFn::And,
    BinaryFn::Or,
    BinaryFn::Xor,
    BinaryFn::Shl,
    BinaryFn::Shr,
];
const UNARY: [UnaryFn; 5] = [
    UnaryFn::Relu,
    UnaryFn::Neg,
    UnaryFn::Abs,
    UnaryFn::Sign,
    UnaryFn::Not,
];

fn check<T: NativeInt + Into<i64> + std::fmt::Debug>(dtype: DType, values: &[T]) {
    let pairs = values.iter().flat_map(|a| values.iter().map(|b| (*a, *b)));
    let (a, b): (Vec<T>, Vec<T>) = pairs.unzip();
    let want = |op: ScalarOp, args: &[T]| {
        let args: Vec<Scalar> = args.iter().map(|x| Scalar::I((*x).into())).collect();
        op.eval(dtype, dtype, &args).as_i64()
    };
    for level in SimdLevel::available() {
        for f in BINARY {
            let mut out = a.clone();
            assert!(T::run_binary(*level, f, &a, &b, &mut out));
            for ((a, b), y) in a.iter().zip(&b).zip(out) {
                let want = want(ScalarOp::Binary(f), &[*a, *b]);
                assert_eq!(y.into(), want, "{f:?} {a:?} {b:?} {dtype} {}", level.name());
            }
        }
        for f in UNARY {
            let mut out = values.to_vec();
            assert!(T::run_unary(*level, f, values, &mut out));
            for (x, y) in values.iter().zip(out) {
                let want = want(ScalarOp::Unary(f), &[*x]);
                assert_eq!(y.into(), want, "{f:?} {x:?} {dtype} {}", level.name());
            }
        }
    }
}

#[test]
fn every_function_agrees_with_the_scalar_meaning() {
    let bytes: Vec<u8> = (0..=255).collect();
    check(DType::U8, &bytes);
    check(DType::I8, bytemuck::cast_slice::<u8, i8>(&bytes));
    let halves = [
        i16::MIN,
        i16::MIN + 1,
        -257,
        -182,
        -7,
        -2,
        -1,
        0,
        1,
        2,
        3,
        7,
        15,
        16,
        181,
        256,
        i16::MAX - 1,
        i16::MAX,
    ];
    check(DType::I16, &halves);
    let words = [
        0u32,
        1,
        2,
        3,
        7,
        8,
        31,
        32,
        255,
        46_341,
        65_536,
        0x7fff_fffe,
        0x7fff_ffff,
        0x8000_0000,
        0x8000_0001,
        0xffff_fff9,
        0xffff_fffe,
        0xffff_ffff,
    ];
    check(DType::U32, &words);
    check(DType::I32, bytemuck::cast_slice::<u32, i32>(&words));
}
