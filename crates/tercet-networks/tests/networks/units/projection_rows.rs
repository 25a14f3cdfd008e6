use tercet::Tensor;
use tercet_networks::config::decoder::rows::ProjectionRowOrder;

#[test]
fn fused_rows_go_there_and_back() {
    // With two heads of 2 rows each, the Hugging Face order q0 k0 v0 q1 k1 v1 becomes q0 q1 k0
    // k1 v0 v1.
    let rows = ProjectionRowOrder::Apart {
        head_dim: 2,
        queries: 1,
    };
    let values: Vec<f32> = (0..12).map(|i| i as f32).collect();
    let folder = Tensor::from_slice(&[12, 1], &values).unwrap();
    let own = rows.apply(&folder);
    let want = [0.0, 1.0, 6.0, 7.0, 2.0, 3.0, 8.0, 9.0, 4.0, 5.0, 10.0, 11.0];
    assert_eq!(own.as_slice::<f32>().unwrap(), want);
    assert_eq!(rows.undo(&own).bytes(), folder.bytes());
    // With two groups of two query heads of one row each, the Hugging Face order is q0 q1 k0 v0
    // q2 q3 k1 v1.
    let rows = ProjectionRowOrder::Apart {
        head_dim: 1,
        queries: 2,
    };
    let folder = Tensor::from_slice(&[8, 1], &values[..8]).unwrap();
    let own = rows.apply(&folder);
    let want = [0.0, 1.0, 4.0, 5.0, 2.0, 6.0, 3.0, 7.0];
    assert_eq!(own.as_slice::<f32>().unwrap(), want);
    assert_eq!(rows.undo(&own).bytes(), folder.bytes());
}

#[test]
fn rows_go_there_and_back() {
    // The projection has two columns and two heads of 6 rows each. RoPE rotates 4 rows of a head.
    let rows = ProjectionRowOrder::Pairs {
        head_dim: 6,
        rope_dims: 4,
    };
    let values: Vec<f32> = (0..24).map(|i| i as f32).collect();
    let plain = Tensor::from_slice(&[12, 2], &values).unwrap();
    let pairs = rows.apply(&plain);
    let first: Vec<f32> = pairs
        .as_slice::<f32>()
        .unwrap()
        .iter()
        .step_by(2)
        .copied()
        .collect();
    let hf_rows: Vec<usize> = first.iter().map(|x| *x as usize / 2).collect();
    assert_eq!(hf_rows, [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11]);
    assert_eq!(rows.undo(&pairs).bytes(), plain.bytes());
    assert_eq!(
        ProjectionRowOrder::Plain.apply(&plain).bytes(),
        plain.bytes()
    );
}
