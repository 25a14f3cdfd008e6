use super::*;

#[test]
fn lengths_are_checked() {
    let e = Tensor::from_slice(&[2, 3], &[1f32; 5]).unwrap_err();
    assert_eq!(e.to_string(), "f32[2, 3] needs 6 elements, got 5");
    let huge = TensorType::new(DType::F32, &[usize::MAX, 2]);
    assert!(matches!(
        Tensor::zeros(huge),
        Err(TensorError::Overflow { .. })
    ));
    let hidden = TensorType::new(DType::F32, &[0, usize::MAX, 2]);
    assert!(matches!(
        Tensor::zeros(hidden),
        Err(TensorError::Overflow { .. })
    ));
}

#[test]
fn memory_that_is_not_there_is_an_error() {
    // This size exceeds a process's address space on every system.
    let huge = TensorType::new(DType::F32, &[1 << 40, 1 << 18]);
    let refused =
        |e: &TensorError| matches!(e, TensorError::OutOfMemory { bytes, .. } if *bytes == 1 << 60);
    assert!(Tensor::zeros(huge.clone()).is_err_and(|e| refused(&e)));
    let mut t = Tensor::zeros(TensorType::new(DType::F32, &[8])).unwrap();
    let shared = t.clone();
    for _ in 0..2 {
        let reset = t.reset_to(huge.dtype, &huge.shape);
        assert!(reset.is_err_and(|e| refused(&e)));
        assert_eq!((t.shape(), t.bytes().len()), (&[0][..], 0));
    }
    t.reset_to(DType::F32, &[8]).unwrap();
    assert_eq!(t, shared);
}

#[test]
fn shared_memory_is_not_copied_until_written() {
    let data: Vec<u8> = bytemuck::cast_slice(&[1f32, 2.0, 3.0, 4.0]).to_vec();
    let owner: Arc<dyn ByteOwner> = Arc::new(data);
    let start = (*owner).as_ref().as_ptr().align_offset(4);
    let ty = TensorType::new(DType::F32, &[2]);
    let mut t = Tensor::from_owner(ty, owner.clone(), start..start + 8).unwrap();
    assert_eq!(t.bytes().as_ptr(), (*owner).as_ref()[start..].as_ptr());
    t.bytes_mut()[0] = 1;
    assert_ne!(t.bytes().as_ptr(), (*owner).as_ref()[start..].as_ptr());
    let past = TensorType::new(DType::F32, &[4]);
    assert!(Tensor::from_owner(past, owner, 8..24).is_err());
}

#[test]
fn bytes_that_are_not_aligned_are_copied_when_asked_for() {
    let numbers: Vec<u8> = (0..16).collect();
    let owner: Arc<dyn ByteOwner> = Arc::new(numbers);
    let start = (*owner).as_ref().as_ptr().align_offset(4) + 1;
    let ty = TensorType::new(DType::F32, &[2]);
    let own = &(*owner).as_ref()[start..start + 8];
    let mut t = Tensor::from_owner(ty.clone(), owner.clone(), start..start + 8).unwrap();
    let clone = t.clone();
    assert!(t.is_loose());
    assert_eq!(t.loose_bytes().as_ptr(), own.as_ptr());
    assert_eq!(t, Tensor::from_bytes(ty, own).unwrap());
    assert!(t.is_loose(), "comparing copies nothing");
    clone.align().unwrap();
    assert!(!t.is_loose(), "one copy serves all clones");
    assert_eq!(t.bytes().as_ptr(), clone.bytes().as_ptr());
    assert_eq!(t.bytes().as_ptr().align_offset(4), 0);
    assert_eq!((t.bytes(), t.loose_bytes()), (own, own));
    t.bytes_mut()[0] = 0xff;
    assert_eq!((t.bytes()[0], clone.bytes()[0]), (0xff, own[0]));
}

#[test]
fn conversions_saturate_and_wrap() {
    let ty = TensorType::new(DType::I8, &[3]);
    let t = Tensor::from_f64s(ty.clone(), &[300.0, f64::NAN, -1.9]).unwrap();
    assert_eq!(t.as_slice::<i8>().unwrap(), [127, 0, -1]);
    let t = Tensor::from_i64s(ty, &[128, 256, -1]).unwrap();
    assert_eq!(t.as_slice::<i8>().unwrap(), [-128, 0, -1]);
    let ty = TensorType::new(DType::I16, &[3]);
    let t = Tensor::from_f64s(ty.clone(), &[4e4, f64::NAN, -1.9]).unwrap();
    assert_eq!(t.as_slice::<i16>().unwrap(), [32_767, 0, -1]);
    assert_eq!(t.to_f64s(), [32_767.0, 0.0, -1.0]);
    let t = Tensor::from_i64s(ty, &[32_768, 65_536, -1]).unwrap();
    assert_eq!(t.as_slice::<i16>().unwrap(), [-32_768, 0, -1]);
    assert_eq!(t.to_i64s(), [-32_768, 0, -1]);
    assert!(t.as_slice::<f32>().is_err());
}

#[test]
fn reset_reuses_the_allocation() {
    let mut t = Tensor::zeros(TensorType::new(DType::F32, &[8, 8])).unwrap();
    let before = t.bytes().as_ptr();
    t.reset_to(DType::F16, &[4, 4]).unwrap();
    assert_eq!(t.bytes().as_ptr(), before);
    assert_eq!(t.bytes().len(), 32);
}
