use tercet_cli::internals::{LogitsRecorder, NpyDtype, read_npy};

#[test]
fn rows_are_read_back_and_an_unfinished_file_is_deleted() {
    let name = format!("tercet-logits-{}.npy", std::process::id());
    let path = std::env::temp_dir().join(name);
    let file = LogitsRecorder::create(&path, 3).unwrap();
    let mut observer = file.observer();
    for at in 0..1001u16 {
        observer(&[f32::from(at), 0.5, -1.0]);
    }
    assert_eq!(file.finish().unwrap(), [1001, 3]);
    let (dtype, shape, bytes) = read_npy(&path).unwrap().into_parts();
    assert_eq!((dtype, shape), (NpyDtype::F32, vec![1001, 3]));
    assert_eq!(bytes[12000..12004], 1000f32.to_le_bytes());

    drop(LogitsRecorder::create(&path, 3).unwrap());
    assert!(!path.exists());
}
