use tercet::{DType, Tensor, TensorType};
use tercet_cli::internals::tensors::{JsonElements, PIECE, print, to_array, to_tensor};
use tercet_cli::internals::{NpyArray, NpyDtype};

#[test]
fn rows_and_columns_beyond_the_first_are_counted() {
    let shown = |shape: &[usize]| {
        let ty = TensorType::new(DType::I32, shape);
        let values: Vec<f64> = (0..ty.numel()).map(|i| i as f64).collect();
        let mut out = Vec::new();
        print(&mut out, &Tensor::from_f64s(ty, &values).unwrap()).unwrap();
        String::from_utf8(out).unwrap()
    };
    assert_eq!(shown(&[]).trim(), "0");
    assert_eq!(shown(&[0, 3]), "");
    assert_eq!(shown(&[3, 0]), "");
    let wide = shown(&[17, 9]);
    assert!(wide.starts_with("             0            1"), "{wide}");
    assert!(
        wide.ends_with("142  ... 1 more\n  ... 1 more row\n"),
        "{wide}"
    );
    assert_eq!(shown(&[18, 1]).lines().last(), Some("  ... 2 more rows"));
}

#[test]
fn values_across_pieces_are_all_there() {
    let n = 2 * PIECE + 3;
    let values: Vec<f64> = (0..n).map(|i| i as f64 / 2.0).collect();
    for dtype in [DType::F32, DType::F64] {
        let tensor = Tensor::from_f64s(TensorType::new(dtype, &[n]), &values).unwrap();
        let text = serde_json::to_string(&JsonElements(&tensor)).unwrap();
        let back: Vec<f64> = serde_json::from_str(&text).unwrap();
        assert_eq!(back, values);
    }
}

#[test]
fn bf16_is_f4_in_files_and_back() {
    let n = PIECE + 1;
    let values: Vec<f64> = (0..n).map(|i| (i % 200) as f64).collect();
    let ty = TensorType::new(DType::BF16, &[n]);
    let tensor = Tensor::from_f64s(ty, &values).unwrap();
    let (dtype, shape, bytes) = to_array(&tensor).into_parts();
    assert_eq!((dtype, bytes.len()), (NpyDtype::F32, 4 * n));
    let array = NpyArray::new(dtype, shape, bytes).unwrap();
    assert_eq!(to_tensor("x", array, DType::BF16).unwrap(), tensor);
}
