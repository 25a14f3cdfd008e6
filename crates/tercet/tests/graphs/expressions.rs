//! Tests of graphs that are written with operators, of outputs by name, and of arrays.

use tercet::{
    CompileOptions, DType, Device, Graph, GraphBuilder, GraphExpr, RunError, Tensor, Type, one_line,
};

fn f32s<const N: usize>(shape: [usize; N]) -> Type {
    Type::new(DType::F32, shape)
}

/// The value of an expression of `x = [1, 2, 4]` and `y = [2]`.
fn value(of: impl for<'b> Fn(GraphExpr<'b>, GraphExpr<'b>) -> GraphExpr<'b>) -> Vec<f32> {
    let b = GraphBuilder::new();
    let (x, y) = (b.input("x", f32s([3])), b.input("y", f32s([1])));
    b.output("z", of(x, y));
    let mut exe = Device::cpu()
        .compile(&b.finish().unwrap(), &CompileOptions::new())
        .unwrap();
    let x = Tensor::from_slice(&[3], &[1f32, 2.0, 4.0]).unwrap();
    let y = Tensor::from_slice(&[1], &[2f32]).unwrap();
    let mut outputs = exe.run_named(&[("x", &x), ("y", &y)]).unwrap();
    outputs
        .take("z")
        .unwrap()
        .as_slice::<f32>()
        .unwrap()
        .to_vec()
}

#[test]
fn operators_are_those_of_numbers_on_both_sides() {
    assert_eq!(value(|x, y| x + y), [3.0, 4.0, 6.0]);
    assert_eq!(value(|x, y| x - y), [-1.0, 0.0, 2.0]);
    assert_eq!(value(|x, y| y - x), [1.0, 0.0, -2.0]);
    assert_eq!(value(|x, y| x * y), [2.0, 4.0, 8.0]);
    assert_eq!(value(|x, y| y / x), [2.0, 1.0, 0.5]);
    assert_eq!(value(|x, _| x / 2.0), [0.5, 1.0, 2.0]);
    assert_eq!(value(|x, _| 2.0 / x), [2.0, 1.0, 0.5]);
    assert_eq!(value(|x, _| 8 - x), [7.0, 6.0, 4.0]);
    assert_eq!(value(|x, _| x - 8), [-7.0, -6.0, -4.0]);
    assert_eq!(value(|x, _| -x * 3 + 0.5), [-2.5, -5.5, -11.5]);
    assert_eq!(value(|x, y| (x + y) * (x - y)), [-3.0, 0.0, 12.0]);
    assert_eq!(value(|x, _| x.map(|g, x| g.sqrt(x)) + 1.0)[2], 3.0);
}

#[test]
fn a_builder_makes_the_graph_of_the_methods() {
    let b = GraphBuilder::new();
    let x = b.input("x", f32s([4, 3]));
    let w = b.param("w", f32s([3, 2]));
    let s = b.state("s", f32s([4, 2]));
    let y = x.matmul(w) * 2.0 + s;
    b.assign(s, y);
    b.output("y", y);
    let built = b.finish().unwrap();

    let mut g = Graph::new();
    let x = g.input("x", f32s([4, 3])).unwrap();
    let w = g.param("w", f32s([3, 2])).unwrap();
    let s = g.state("s", f32s([4, 2])).unwrap();
    let y = g.matmul(x, w).unwrap();
    let two = g.scalar(DType::F32, 2.0).unwrap();
    let y = g.mul(y, two).unwrap();
    let y = g.plus(y, s).unwrap();
    g.assign(s, y).unwrap();
    g.output("y", y).unwrap();
    assert_eq!(built, g);
}

#[test]
fn the_first_error_is_that_of_finish() {
    let b = GraphBuilder::new();
    let x = b.input("x", f32s([3]));
    let bad = x + b.input("y", f32s([2]));
    assert!(bad.ty().is_none());
    let value = bad.value().unwrap_err();
    // Later errors follow from the first.
    b.output("z", (bad * 2.0 / x).map(|g, x| g.softmax(x, 9)));
    b.output("x", x.map(|g, x| g.softmax(x, 9)));
    let error = b.finish().unwrap_err();
    assert_eq!(error, value);
    assert!(
        one_line(&error).contains("f32[3]") && one_line(&error).contains("f32[2]"),
        "{error}"
    );
}

#[test]
fn mistakes_are_errors_and_not_panics() {
    let told = |b: GraphBuilder, part: &str| {
        let error = one_line(&b.finish().unwrap_err());
        assert!(error.contains(part), "{error}");
    };
    let (b, other) = (GraphBuilder::new(), GraphBuilder::new());
    b.output("y", b.input("x", f32s([2])) + other.input("x", f32s([2])));
    told(b, "belongs to another builder");
    let b = GraphBuilder::new();
    b.output("y", other.input("z", f32s([2])));
    told(b, "belongs to another builder");
    let b = GraphBuilder::new();
    let x = b.input("x", f32s([2]));
    b.output("y", x.map(|_, _| (x + x).value()));
    told(b, "inside of `apply` or `map`");
    for number in [0.5, 300.0, -1.0, f64::NAN, f64::INFINITY] {
        let b = GraphBuilder::new();
        b.output("y", b.input("x", Type::new(DType::U8, [2])) * number);
        told(b, "is not a value of u8");
    }
    let b = GraphBuilder::new();
    b.output("y", b.input("x", Type::new(DType::I32, [2])) + 2);
    assert!(b.finish().is_ok());
    let b = GraphBuilder::new();
    let x = b.input("x", f32s([2]));
    b.output("y", x);
    b.output("y", x);
    told(b, "already in use");
    let b = GraphBuilder::new();
    let mut long = Graph::new();
    for name in ["a", "b", "c"] {
        long.input(name, f32s([1])).unwrap();
    }
    let foreign = long.input("d", f32s([1])).unwrap();
    b.output("y", b.apply(|_| Ok(foreign)) + 1.0);
    told(b, "not in this graph");
}

#[test]
fn outputs_have_names() {
    let b = GraphBuilder::new();
    let x = b.input("x", f32s([2]));
    b.output("twice", x * 2.0);
    b.output("half", x / 2.0);
    let mut exe = Device::cpu()
        .compile(&b.finish().unwrap(), &CompileOptions::new())
        .unwrap();
    let x = Tensor::from_slice(&[2], &[1f32, 3.0]).unwrap();
    let mut outputs = exe.run_named(&[("x", &x)]).unwrap();
    assert_eq!(
        outputs.get("half").unwrap().as_slice::<f32>().unwrap(),
        [0.5, 1.5]
    );
    let names: Vec<&str> = outputs.iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["twice", "half"]);
    let error = outputs.get("thrice").unwrap_err();
    assert_eq!(
        error.to_string(),
        "no output named `thrice`; the graph has: twice, half"
    );
    assert_eq!(
        outputs.take("twice").unwrap().as_slice::<f32>().unwrap(),
        [2.0, 6.0]
    );
    assert!(matches!(
        outputs.take("twice"),
        Err(RunError::UnknownName { .. })
    ));
    assert!(exe.run_named(&[]).is_err());
}

#[cfg(feature = "ndarray")]
mod arrays {
    use ndarray::{Array, Array2, Array3, ArrayD, IxDyn, array, s};
    use tercet::{DType, Tensor, TensorArrays, TensorError, TensorType};

    #[test]
    fn arrays_of_any_layout_become_row_major() {
        let a = Array3::from_shape_fn((2, 3, 4), |(i, j, k)| (100 * i + 10 * j + k) as i32);
        let check = |tensor: Tensor, want: ArrayD<i32>| {
            assert_eq!(tensor.shape(), want.shape());
            let elements: Vec<i32> = want.iter().copied().collect();
            assert_eq!(tensor.as_slice::<i32>().unwrap(), elements);
            assert_eq!(tensor.to_array::<i32>().unwrap(), want);
        };
        check(Tensor::from_array(&a).unwrap(), a.clone().into_dyn());
        check(
            Tensor::from_array(&a.t()).unwrap(),
            a.t().to_owned().into_dyn(),
        );
        let part = a.slice(s![.., 1.., ..;2]);
        check(
            Tensor::from_array(&part).unwrap(),
            part.to_owned().into_dyn(),
        );
        let reversed = a.slice(s![..;-1, .., ..]);
        check(
            Tensor::from_array(&reversed).unwrap(),
            reversed.to_owned().into_dyn(),
        );
        let fortran = Array2::from_shape_vec(ndarray::ShapeBuilder::f((2, 2)), vec![1, 2, 3, 4]);
        let fortran = fortran.unwrap();
        check(Tensor::from_array(&fortran).unwrap(), fortran.into_dyn());
    }

    #[test]
    fn scalars_and_empty_arrays_convert() {
        let scalar = Array::from_elem(IxDyn(&[]), 2.5f64);
        let tensor = Tensor::from_array(&scalar).unwrap();
        assert_eq!((tensor.shape().len(), tensor.dtype()), (0, DType::F64));
        assert_eq!(tensor.as_array::<f64>().unwrap(), scalar);
        let empty = Array2::<f32>::zeros((0, 3));
        let tensor = Tensor::from_array(&empty).unwrap();
        assert_eq!(tensor.to_array::<f32>().unwrap(), empty.into_dyn());
    }

    #[test]
    fn a_view_has_the_memory_and_the_dtype_of_the_tensor() {
        let tensor = Tensor::from_array(&array![1f32, 2.0]).unwrap();
        let view = tensor.as_array::<f32>().unwrap();
        assert_eq!(view.as_ptr(), tensor.as_slice::<f32>().unwrap().as_ptr());
        let error = tensor.as_array::<i32>().unwrap_err();
        assert!(matches!(error, TensorError::DType { .. }), "{error:?}");
        let huge = TensorType::new(DType::F32, &[0, usize::MAX / 16, 2]);
        if let Ok(tensor) = Tensor::zeros(huge) {
            assert!(tensor.as_array::<f32>().is_err() || tensor.numel() == 0);
        }
    }
}
