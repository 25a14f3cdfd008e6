//! Tests of device-resident inputs: bound tensors, outputs used as inputs, and uploads that are
//! avoided.

use crate::{SuiteTest, everywhere, for_each_executor};
use tercet::{
    CompileOptions, DType, Device, DeviceTensor, Dim, Executable, Graph, RunError, Tensor,
    TensorType, Type,
};

type BoxError = Box<dyn std::error::Error>;

fn f32s(shape: &[usize], values: &[f32]) -> Tensor {
    Tensor::from_slice(shape, values).expect("the list has the number of elements of its shape")
}

/// `y = 2 x + b` with rows of three elements.
fn affine(device: &Device) -> Result<Box<dyn Executable>, BoxError> {
    let mut g = Graph::new();
    let ty = Type::new(DType::F32, [Dim::sym("s"), 3.into()]);
    let x = g.input("x", ty)?;
    let b = g.input("b", Type::new(DType::F32, [3]))?;
    let two = g.scalar(DType::F32, 2.0)?;
    let y = g.mul(x, two)?;
    let y = g.plus(y, b)?;
    g.output("y", y)?;
    Ok(device.compile(&g, &CompileOptions::new().bound("s", 8))?)
}

fn an_output_is_the_input_of_another() {
    everywhere(|device| {
        let (mut first, mut second) = (affine(device)?, affine(device)?);
        let b = f32s(&[3], &[1.0, 0.0, -1.0]);
        for rows in [2, 5, 1] {
            let x: Vec<f32> = (0..rows * 3).map(|i| i as f32).collect();
            let x = f32s(&[rows, 3], &x);
            let y = first.run(&[("x", &x), ("b", &b)])?.remove(0);
            let on_device = first.output_on_device("y")?;
            assert_eq!(on_device.ty(), y.ty());
            assert_eq!(on_device.read()?, y);
            // Later results of the first executable do not affect the tensor.
            first.run(&[("x", &y), ("b", &b)])?;
            assert_eq!(on_device.read()?, y);
            second.bind("x", &on_device)?;
            drop(on_device);
            let bound = second.run(&[("b", &b)])?;
            let mut plain = affine(device)?;
            assert_eq!(bound, plain.run(&[("x", &y), ("b", &b)])?);
            assert_eq!(second.run(&[("b", &b)])?, bound);
        }
        // A tensor outlives its executable, and a binding keeps its tensor alive.
        let last = first.output_on_device("y")?;
        drop(first);
        let want = last.read()?;
        second.bind("x", &last)?;
        drop(last);
        let zeros = f32s(&[3], &[0.0; 3]);
        let y = second.run(&[("b", &zeros)])?.remove(0);
        let doubled: Vec<f64> = want.to_f64s().iter().map(|x| x * 2.0).collect();
        assert_eq!(y.to_f64s(), doubled);
        Ok(())
    });
}

fn outputs_that_are_released_are_written_without_a_copy() {
    everywhere(|device| {
        let mut exe = affine(device)?;
        let b = f32s(&[3], &[1.0, 0.0, -1.0]);
        let inputs = [1.0, 2.0].map(|x| f32s(&[2, 3], &[x; 6]));
        let mut kept = Vec::new();
        for x in &inputs {
            let y = exe.run_outputs(&[("x", x), ("b", &b)], &["y"])?;
            exe.release_outputs();
            kept.extend(y);
        }
        let wanted = [[3.0, 2.0, 1.0], [5.0, 4.0, 3.0]];
        for (y, wanted) in kept.iter_mut().zip(wanted) {
            assert_eq!(y.to_f64s(), [wanted, wanted].concat());
            let memory = y.bytes().as_ptr();
            y.bytes_mut().fill(0);
            assert_eq!(y.bytes().as_ptr(), memory);
        }
        // Writing to the host tensors does not affect later runs.
        let again = exe.run(&[("x", &inputs[1]), ("b", &b)])?;
        assert_eq!(again[0].to_f64s(), [wanted[1], wanted[1]].concat());
        Ok(())
    });
}

fn an_output_is_the_input_of_its_own_executable() {
    everywhere(|device| {
        let mut exe = affine(device)?;
        exe.bind("x", &exe.upload(&f32s(&[1, 3], &[1.0, 2.0, 3.0]))?)?;
        exe.bind("b", &exe.upload(&f32s(&[3], &[0.0, 0.0, 1.0]))?)?;
        let mut outputs = Vec::new();
        for _ in 0..4 {
            exe.submit(&[], tercet::OutputSelection::Only(&[]))?;
            exe.wait(&mut outputs)?;
            let y = exe.output_on_device("y")?;
            exe.bind("x", &y)?;
        }
        let y = exe.output_on_device("y")?.read()?;
        assert_eq!(y.to_f64s(), [16.0, 32.0, 63.0]);
        Ok(())
    });
}

fn bindings_stay_until_they_end() {
    everywhere(|device| {
        let mut exe = affine(device)?;
        let x = f32s(&[1, 3], &[1.0, 2.0, 3.0]);
        let (b, other) = (f32s(&[3], &[1.0; 3]), f32s(&[3], &[5.0; 3]));
        let bound = exe.upload(&b)?;
        exe.bind("b", &bound)?;
        let first = exe.run(&[("x", &x)])?;
        assert_eq!(first[0].to_f64s(), [3.0, 5.0, 7.0]);
        // An input that a run provides overrides the binding for that run.
        let given = exe.run(&[("x", &x), ("b", &other)])?;
        assert_eq!(given[0].to_f64s(), [7.0, 9.0, 11.0]);
        assert_eq!(exe.run(&[("x", &x)])?, first);
        exe.reset();
        assert_eq!(exe.run(&[("x", &x)])?, first);
        let mut clone = exe.try_clone()?;
        exe.unbind("b")?;
        let missing = exe.run(&[("x", &x)]);
        assert!(
            matches!(missing, Err(RunError::Missing { .. })),
            "{missing:?}"
        );
        assert_eq!(clone.run(&[("x", &x)])?, first);
        // Names, types and sizes are checked.
        let unknown = exe.bind("c", &bound);
        assert!(matches!(unknown, Err(RunError::UnknownName { .. })));
        let flat = exe.bind("x", &bound);
        assert!(matches!(flat, Err(RunError::Type { .. })));
        exe.bind("x", &exe.upload(&f32s(&[1, 2], &[0.0; 2]))?)?;
        let wrong = exe.run(&[("b", &b)]);
        assert!(matches!(wrong, Err(RunError::Type { .. })), "{wrong:?}");
        let many = exe.upload(&f32s(&[9, 3], &[0.0; 27]))?;
        exe.bind("x", &many)?;
        let above = exe.run(&[("b", &b)]);
        assert!(
            matches!(above, Err(RunError::AboveBound { .. })),
            "{above:?}"
        );
        assert_eq!(exe.run(&[("x", &x), ("b", &b)])?, first);
        Ok(())
    });
}

fn nothing_ran_nothing_to_share() {
    everywhere(|device| {
        let mut exe = affine(device)?;
        let none = exe.output_on_device("y");
        assert!(matches!(none, Err(RunError::Missing { .. })), "{none:?}");
        let unknown = exe.output_on_device("z");
        assert!(matches!(unknown, Err(RunError::UnknownName { .. })));
        Ok(())
    });
}

fn tensors_of_another_device_are_refused() {
    let host = affine(&Device::cpu()).expect("it compiles");
    let b = f32s(&[3], &[1.0; 3]);
    let on_host = host.upload(&b).expect("there is room");
    for_each_executor(|device| {
        let mut exe = affine(device).expect("it compiles");
        let own = exe.upload(&b).expect("there is room");
        exe.bind("b", &own).expect("it is its own");
        if device.name() == "cpu" {
            return;
        }
        let e = exe.bind("b", &on_host).expect_err("it is the host's");
        let text = e.to_string();
        assert!(matches!(e, RunError::OtherDevice { .. }), "{e:?}");
        assert!(
            text.contains(device.name()) && text.contains("another device (cpu)"),
            "{text}"
        );
        let mut host = affine(&Device::cpu()).expect("it compiles");
        assert!(matches!(
            host.bind("b", &own),
            Err(RunError::OtherDevice { .. })
        ));
    });
}

/// Runs a tensor through a graph that returns its input.
fn through(device: &Device, tensor: &Tensor) -> Result<(Tensor, DeviceTensor), BoxError> {
    let mut g = Graph::new();
    let x = g.input("x", tensor.ty().into())?;
    g.output("y", x)?;
    let mut exe = device.compile(&g, &CompileOptions::new())?;
    let on_device = exe.upload(tensor)?;
    assert_eq!(on_device.read()?, *tensor);
    exe.bind("x", &on_device)?;
    let y = exe.run(&[])?.remove(0);
    Ok((y, exe.output_on_device("y")?))
}

fn every_dtype_and_words_that_are_not_whole() {
    everywhere(|device| {
        for &dtype in DType::ALL {
            if dtype == DType::F64 && !["cpu", "reference"].contains(&device.name()) {
                continue;
            }
            for n in [0, 1, 3, 7, 2000] {
                let values: Vec<f64> = (0..n).map(|i| f64::from(i % 2)).collect();
                let x = Tensor::from_f64s(TensorType::new(dtype, &[n as usize]), &values)?;
                let (y, shared) = through(device, &x)?;
                assert_eq!(y, x);
                assert_eq!(shared.read()?, x);
            }
        }
        let wide = Tensor::from_slice(&[2], &[-5i64, 1 << 20])?;
        assert_eq!(through(device, &wide)?.0, wide);
        Ok(())
    });
}

fn what_changed_is_seen() {
    everywhere(|device| {
        let mut g = Graph::new();
        let x = g.input("x", Type::new(DType::F32, [Dim::sym("n")]))?;
        let y = g.neg(x)?;
        g.output("y", y)?;
        let mut exe = device.compile(&g, &CompileOptions::new().bound("n", 5000))?;
        let mut check = |x: &Tensor| -> Result<(), BoxError> {
            for _ in 0..2 {
                let y = exe.run(&[("x", x)])?.remove(0);
                let want: Vec<f64> = x.to_f64s().iter().map(|x| -x).collect();
                assert_eq!(y.to_f64s(), want, "{}", x.ty());
            }
            Ok(())
        };
        for n in [5usize, 5000] {
            let mut x = f32s(&[n], &vec![1.0; n]);
            check(&x)?;
            x.as_slice_mut::<f32>()?[n - 1] = 3.0;
            check(&x)?;
            let kept = x.clone();
            x.as_slice_mut::<f32>()?[0] = 4.0;
            check(&x)?;
            check(&kept)?;
            x.reset_to(DType::F32, &[n - 1])?;
            x.as_slice_mut::<f32>()?.fill(7.0);
            check(&x)?;
            // A new tensor may reuse the allocation of a dropped one.
            for i in 0..8 {
                check(&f32s(&[n], &vec![i as f32; n]))?;
            }
        }
        Ok(())
    });
}

#[cfg(feature = "vulkan")]
fn what_did_not_change_is_not_uploaded_again() {
    let Ok(backend) = crate::vulkan::backend() else {
        return;
    };
    let device = Device::from_backend(std::sync::Arc::clone(&backend));
    let mut g = Graph::new();
    let [x, b] = ["x", "b"].map(|name| g.input(name, Type::new(DType::F32, [3000])));
    let y = g.plus(x.expect("typed"), b.expect("typed")).expect("typed");
    g.output("y", y).expect("typed");
    let mut exe = backend
        .compile_gpu(&g, &CompileOptions::new())
        .expect("it compiles");
    let mut bytes_of = |inputs: &[(&str, &Tensor)]| {
        let before = exe.driver().counters().upload_bytes;
        let exe: &mut dyn Executable = &mut exe;
        exe.run(inputs).expect("it runs");
        before
    };
    let (mut x, b) = (f32s(&[3000], &[1.0; 3000]), f32s(&[3000], &[2.0; 3000]));
    let start = bytes_of(&[("x", &x), ("b", &b)]);
    let both = bytes_of(&[("x", &x), ("b", &b)]) - start;
    assert_eq!(both, 24_000);
    let again = bytes_of(&[("x", &x), ("b", &b)]) - start - both;
    assert_eq!(again, 0);
    x.as_slice_mut::<f32>().expect("f32")[0] = 0.0;
    let before = bytes_of(&[("x", &x), ("b", &b)]);
    assert_eq!(before, start + both);
    let one = bytes_of(&[("x", &x), ("b", &b)]) - before;
    assert_eq!(one, 12_000);
    drop(device);
}

/// The tests of this suite.
pub(super) fn tests() -> Vec<SuiteTest> {
    vec![
        SuiteTest::asserting(
            "resident/an_output_is_the_input_of_another",
            an_output_is_the_input_of_another,
        ),
        SuiteTest::asserting(
            "resident/an_output_is_the_input_of_its_own_executable",
            an_output_is_the_input_of_its_own_executable,
        ),
        SuiteTest::asserting(
            "resident/outputs_that_are_released_are_written_without_a_copy",
            outputs_that_are_released_are_written_without_a_copy,
        ),
        SuiteTest::asserting(
            "resident/bindings_stay_until_they_end",
            bindings_stay_until_they_end,
        ),
        SuiteTest::asserting(
            "resident/nothing_ran_nothing_to_share",
            nothing_ran_nothing_to_share,
        ),
        SuiteTest::asserting(
            "resident/tensors_of_another_device_are_refused",
            tensors_of_another_device_are_refused,
        ),
        SuiteTest::asserting(
            "resident/every_dtype_and_words_that_are_not_whole",
            every_dtype_and_words_that_are_not_whole,
        ),
        SuiteTest::asserting("resident/what_changed_is_seen", what_changed_is_seen),
        #[cfg(feature = "vulkan")]
        SuiteTest::asserting(
            "resident/what_did_not_change_is_not_uploaded_again",
            what_did_not_change_is_not_uploaded_again,
        ),
    ]
}
