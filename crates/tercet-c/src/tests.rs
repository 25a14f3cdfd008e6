//! The exported functions, called as C calls them. `examples/bad_input.c` has further invalid input.

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

use tercet::{DType, Device};
use tercet_models::{EncoderOptions, ModelFiles};

use crate::boundary::Caller;
use crate::device::{TercetDevice, tercet_device_open};
use crate::embedder::{TercetEmbedder, tercet_embed, tercet_embedder_open, tercet_embedder_width};
use crate::error::{
    TercetError, TercetStatus, tercet_error_message, tercet_error_status, tercet_status_name,
};
use crate::generator::{
    TercetFinish, TercetGenerateEvent, TercetGenerateOptions, TercetGeneration,
    TercetGenerationView, TercetGenerator, tercet_generate, tercet_generation_read,
    tercet_generator_open, tercet_generator_stop,
};
use crate::handles;
use crate::model::TercetModelOptions;
use crate::recognizer::{
    TercetRecognizer, TercetTranscribeOptions, TercetTranscript, TercetTranscriptView,
    tercet_recognizer_open, tercet_transcribe, tercet_transcript_read,
};
use crate::session::{
    TercetBound, TercetNamedTensor, TercetSession, tercet_session_from_text,
    tercet_session_read_state, tercet_session_reset, tercet_session_run, tercet_session_set_param,
    tercet_session_write_state,
};
use crate::tensor::{
    TercetDtype, TercetTensor, TercetTensorView, constant_of, tercet_dtype_name, tercet_dtype_size,
    tercet_tensor_borrow, tercet_tensor_new, tercet_tensor_read,
};
use crate::tercet_free;

fn data(path: &str) -> String {
    format!("{}/../../tests/data/{path}", env!("CARGO_MANIFEST_DIR"))
}

fn c(text: &str) -> CString {
    CString::new(text).expect("no zero byte")
}

fn text_of(text: *const c_char) -> String {
    // SAFETY: the library returned the text.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().expect("UTF-8").to_string()
}

/// Calls a function with a place for its error; returns the status and the message.
fn call(function: impl FnOnce(*mut *mut TercetError) -> TercetStatus) -> (TercetStatus, String) {
    let mut error = null_mut();
    let status = function(&raw mut error);
    if status == TercetStatus::Ok {
        assert!(error.is_null());
        return (status, String::new());
    }
    assert_eq!(tercet_error_status(error), status);
    let message = text_of(tercet_error_message(error));
    free(error);
    (status, message)
}

/// Calls a function that must succeed.
fn ok(function: impl FnOnce(*mut *mut TercetError) -> TercetStatus) {
    assert_eq!(call(function), (TercetStatus::Ok, String::new()));
}

fn free<T>(handle: *mut T) {
    // SAFETY: any pointer is allowed.
    assert_eq!(unsafe { tercet_free(handle.cast()) }, TercetStatus::Ok);
}

fn cpu() -> *mut TercetDevice {
    let mut device = null_mut();
    // SAFETY: all pointers are valid.
    ok(|e| unsafe { tercet_device_open(c"cpu".as_ptr(), &raw mut device, e) });
    device
}

fn tensor(shape: &[usize], data: &[f32]) -> *mut TercetTensor {
    let mut tensor = null_mut();
    // SAFETY: all pointers are valid.
    ok(|e| unsafe {
        tercet_tensor_new(
            TercetDtype::F32 as i32,
            shape.as_ptr(),
            shape.len(),
            data.as_ptr().cast(),
            size_of_val(data),
            &raw mut tensor,
            e,
        )
    });
    tensor
}

/// The elements of a tensor, which is freed.
fn elements(tensor: *mut TercetTensor) -> Vec<f32> {
    let mut view = TercetTensorView {
        dtype: 0,
        rank: 0,
        shape: null(),
        data: null(),
        bytes: 0,
    };
    // SAFETY: the view is valid.
    ok(|e| unsafe { tercet_tensor_read(tensor, &raw mut view, e) });
    assert_eq!(view.dtype, TercetDtype::F32 as i32);
    // SAFETY: the view has this many bytes of f32.
    let elements = unsafe { std::slice::from_raw_parts(view.data.cast::<f32>(), view.bytes / 4) };
    let elements = elements.to_vec();
    free(tensor);
    elements
}

fn session(text: &str, bounds: &[TercetBound]) -> *mut TercetSession {
    let (device, mut session) = (cpu(), null_mut());
    // SAFETY: all pointers are valid.
    ok(|e| unsafe {
        tercet_session_from_text(
            device,
            text.as_ptr().cast(),
            text.len(),
            bounds.as_ptr(),
            bounds.len(),
            &raw mut session,
            e,
        )
    });
    free(device);
    session
}

#[test]
fn a_panic_becomes_an_error() {
    let (status, message) = call(|error| {
        // SAFETY: the pointer is valid.
        let caller = unsafe { Caller::new(error) };
        caller.guard(|_| panic!("invariant: {}", 7))
    });
    assert_eq!(status, TercetStatus::Internal);
    assert!(
        message.contains("please report it: invariant: 7"),
        "{message}"
    );
}

#[test]
fn each_status_and_dtype_has_its_name_and_size() {
    for number in 0..18 {
        let name = text_of(tercet_status_name(number));
        assert!(name.starts_with("TERCET_STATUS_"), "{number}: {name}");
    }
    let last = text_of(tercet_status_name(TercetStatus::Internal as i32));
    assert_eq!(last, "TERCET_STATUS_INTERNAL");
    assert_eq!(text_of(tercet_status_name(18)), "unknown status");
    assert_eq!(text_of(tercet_status_name(-1)), "unknown status");
    for dtype in DType::ALL {
        let number = constant_of(*dtype) as i32;
        assert_eq!(text_of(tercet_dtype_name(number)), dtype.name());
        assert_eq!(tercet_dtype_size(number), dtype.size_bytes());
    }
    assert_eq!((tercet_dtype_size(0), tercet_dtype_size(99)), (0, 0));
}

#[test]
fn handles_of_another_type_and_freed_handles_are_errors() {
    let device = cpu();
    // SAFETY: the handle is of another type, which is an error.
    let (status, message) =
        call(|e| unsafe { tercet_session_reset(device.cast::<TercetSession>(), e) });
    assert_eq!(status, TercetStatus::Handle);
    assert!(
        message.contains("is a TercetDevice; expected a TercetSession"),
        "{message}"
    );
    free(device);
    // SAFETY: a freed handle is an error.
    assert_eq!(unsafe { tercet_free(device.cast()) }, TercetStatus::Handle);
    assert!(handles::get::<crate::device::DeviceObject>(device, "device").is_err());
}

#[test]
fn without_a_place_no_error_is_kept() {
    let error = null_mut::<*mut TercetError>();
    // SAFETY: NULL is allowed.
    let caller = unsafe { Caller::new(error) };
    assert!(!caller.wants_error());
    let status = caller.guard(|_| Err(crate::error::CallError::argument("no place")));
    assert_eq!(status, TercetStatus::Argument);
}

#[test]
fn a_missing_file_is_not_found_in_each_kind_of_path() {
    let device = cpu();
    for path in [
        "missing/model.gguf",
        "missing/model",
        "missing/model/model.safetensors",
    ] {
        let (path, mut generator) = (c(path), null_mut());
        // SAFETY: all pointers are valid.
        let (status, message) = call(|e| unsafe {
            tercet_generator_open(device, path.as_ptr(), null(), &raw mut generator, e)
        });
        assert_eq!(status, TercetStatus::NotFound, "{message}");
        assert!(generator.is_null());
    }
    free(device);
}

static RELEASED: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn count_release(_: *mut c_void) {
    RELEASED.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn borrowed_parameters_live_as_long_as_the_session() {
    let session = session(
        r#"graph {
  %x = input{name="x", ty=f32[2]}()
  %w = param{name="w", ty=f32[2]}()
  %y = binary{f=add}(%x, %w)
  return %y as "y"
}"#,
        &[],
    );
    let memory = [10f32, 20.0];
    let (shape, mut w) = ([2usize], null_mut());
    // SAFETY: the memory is valid until the session is freed.
    ok(|e| unsafe {
        tercet_tensor_borrow(
            TercetDtype::F32 as i32,
            shape.as_ptr(),
            1,
            memory.as_ptr().cast(),
            8,
            Some(count_release),
            null_mut(),
            &raw mut w,
            e,
        )
    });
    // SAFETY: all pointers are valid.
    ok(|e| unsafe { tercet_session_set_param(session, c"w".as_ptr(), w, e) });
    free(w);
    assert_eq!(RELEASED.load(Ordering::Relaxed), 0);
    let x = tensor(&[2], &[1.0, 2.0]);
    let input = TercetNamedTensor {
        name: c"x".as_ptr(),
        tensor: x,
    };
    let mut y = null_mut();
    // SAFETY: all pointers are valid.
    ok(|e| unsafe { tercet_session_run(session, &raw const input, 1, null(), 1, &raw mut y, e) });
    assert_eq!(elements(y), [11.0, 22.0]);
    free(x);
    free(session);
    assert_eq!(RELEASED.load(Ordering::Relaxed), 1);
}

#[test]
fn states_are_written_read_and_reset() {
    let session = session(
        r#"graph {
  %x = input{name="x", ty=f32[2]}()
  %s = state{name="s", ty=f32[2]}()
  %y = binary{f=add}(%x, %s)
  assign %s = %y
  return %y as "y"
}"#,
        &[],
    );
    let given = tensor(&[2], &[5.0, 6.0]);
    // SAFETY: all pointers are valid.
    ok(|e| unsafe { tercet_session_write_state(session, c"s".as_ptr(), given, e) });
    let input = TercetNamedTensor {
        name: c"x".as_ptr(),
        tensor: given,
    };
    let (mut y, mut s) = (null_mut(), null_mut());
    // SAFETY: all pointers are valid.
    ok(|e| unsafe { tercet_session_run(session, &raw const input, 1, null(), 1, &raw mut y, e) });
    assert_eq!(elements(y), [10.0, 12.0]);
    // SAFETY: all pointers are valid.
    ok(|e| unsafe { tercet_session_read_state(session, c"s".as_ptr(), &raw mut s, e) });
    assert_eq!(elements(s), [10.0, 12.0]);
    // SAFETY: all pointers are valid.
    ok(|e| unsafe { tercet_session_reset(session, e) });
    // SAFETY: all pointers are valid.
    ok(|e| unsafe { tercet_session_read_state(session, c"s".as_ptr(), &raw mut s, e) });
    assert_eq!(elements(s), [0.0, 0.0]);
    free(given);
    free(session);
}

fn generator(context: usize) -> *mut TercetGenerator {
    let (device, mut generator) = (cpu(), null_mut());
    let path = c(&data("tiny-rust-llama/tiny-rust-llama-q8_0.gguf"));
    let options = TercetModelOptions {
        struct_size: size_of::<TercetModelOptions>(),
        context,
        dtype: 0,
        reserved: 0,
    };
    // SAFETY: all pointers are valid.
    ok(|e| unsafe {
        tercet_generator_open(
            device,
            path.as_ptr(),
            &raw const options,
            &raw mut generator,
            e,
        )
    });
    free(device);
    generator
}

fn options(max_tokens: usize) -> TercetGenerateOptions {
    // SAFETY: all zeros are the defaults.
    let zeros: TercetGenerateOptions = unsafe { std::mem::zeroed() };
    TercetGenerateOptions {
        struct_size: size_of::<TercetGenerateOptions>(),
        max_tokens,
        ..zeros
    }
}

/// Text, number of tokens and finish of a generation, which is freed.
fn read(generation: *mut TercetGeneration) -> (String, usize, i32) {
    // SAFETY: the call fills the view.
    let mut view: TercetGenerationView = unsafe { std::mem::zeroed() };
    // SAFETY: the view is valid.
    ok(|e| unsafe { tercet_generation_read(generation, &raw mut view, e) });
    let text = text_of(view.text);
    assert_eq!(text.len(), view.text_bytes);
    free(generation);
    (text, view.token_count, view.finish)
}

/// Collects pieces, and stops after six tokens; calls the own generator, which is an error.
unsafe extern "C" fn collect(event: *const TercetGenerateEvent, user: *mut c_void) -> bool {
    // SAFETY: the test passes this type, and the event is valid during the call.
    let (event, (text, generator)) =
        unsafe { (&*event, &mut *user.cast::<(String, *mut TercetGenerator)>()) };
    *text += &text_of(event.text);
    // SAFETY: the prompt is valid, all other pointers may be NULL.
    let (status, _) = call(|e| unsafe {
        tercet_generate(
            *generator,
            c"x".as_ptr(),
            null(),
            None,
            null_mut(),
            null_mut(),
            e,
        )
    });
    assert_eq!(status, TercetStatus::Busy);
    if event.tokens == 6 {
        // SAFETY: the generator is live.
        ok(|e| unsafe { tercet_generator_stop(*generator, e) });
    }
    true
}

#[test]
fn a_generation_is_streamed_and_stopped() {
    let generator = generator(128);
    let options = options(0);
    let (mut user, mut generation) = ((String::new(), generator), null_mut());
    // SAFETY: all pointers are valid.
    ok(|e| unsafe {
        tercet_generate(
            generator,
            c"fn main".as_ptr(),
            &raw const options,
            Some(collect),
            (&raw mut user).cast(),
            &raw mut generation,
            e,
        )
    });
    let (text, tokens, finish) = read(generation);
    assert_eq!((tokens, finish), (6, TercetFinish::Cancelled as i32));
    assert_eq!(text, user.0);
    free(generator);
}

#[test]
fn two_threads_share_a_generator() {
    let generator = generator(128).addr();
    let write = || {
        let (options, mut generation) = (options(12), null_mut());
        // SAFETY: all pointers are valid.
        ok(|e| unsafe {
            tercet_generate(
                std::ptr::without_provenance(generator),
                c"pub struct".as_ptr(),
                &raw const options,
                None,
                null_mut(),
                &raw mut generation,
                e,
            )
        });
        read(generation)
    };
    let texts = std::thread::scope(|scope| {
        let threads = [scope.spawn(write), scope.spawn(write)];
        threads.map(|thread| thread.join().expect("no panic"))
    });
    assert_eq!(texts[0], texts[1]);
    assert_eq!(texts[0].1, 12);
    free(std::ptr::without_provenance_mut::<TercetGenerator>(
        generator,
    ));
}

#[test]
fn options_of_another_size_are_errors() {
    let generator = generator(64);
    let (mut options, mut generation) = (options(1), null_mut());
    for size in [0, 8, size_of::<TercetGenerateOptions>() - 1, usize::MAX] {
        options.struct_size = size;
        // SAFETY: the library reads the options only if the size is one of the structure or larger.
        let (status, message) = call(|e| unsafe {
            tercet_generate(
                generator,
                c"x".as_ptr(),
                &raw const options,
                None,
                null_mut(),
                &raw mut generation,
                e,
            )
        });
        assert_eq!(status, TercetStatus::Argument);
        assert!(message.contains("`options->struct_size` is"), "{message}");
    }
    free(generator);
}

#[test]
fn embeddings_are_those_of_the_models_crate() {
    let path = data("encoders/sentence-a");
    let files = ModelFiles::open(&path).expect("model");
    let defaults = EncoderOptions::default();
    let mut direct = files.embedder(&Device::cpu(), &defaults).expect("encoder");
    let texts = ["one text", "another"];
    let expected = direct
        .embed_with_progress(&texts, &mut |_| true)
        .expect("embeddings");

    let (device, mut embedder, mut rows) = (cpu(), null_mut::<TercetEmbedder>(), null_mut());
    let path = c(&path);
    // SAFETY: all pointers are valid.
    ok(|e| unsafe { tercet_embedder_open(device, path.as_ptr(), null(), &raw mut embedder, e) });
    let texts = texts.map(c);
    let texts = [texts[0].as_ptr(), texts[1].as_ptr()];
    // SAFETY: all pointers are valid.
    ok(|e| unsafe {
        tercet_embed(
            embedder,
            texts.as_ptr(),
            2,
            null(),
            None,
            null_mut(),
            &raw mut rows,
            e,
        )
    });
    assert_eq!(tercet_embedder_width(embedder), expected[0].len());
    let found = elements(rows);
    let close = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-3;
    assert!(found.iter().zip(&expected.concat()).all(close));
    free(embedder);
    free(device);
}

#[test]
fn transcripts_are_those_of_the_models_crate() {
    let path = data("speech/moonshine-a");
    let samples: Vec<f32> = (0..16_000)
        .map(|at| (at as f32 * 0.05).sin() * 0.3)
        .collect();
    let files = ModelFiles::open(&path).expect("model");
    let mut direct = files.recognizer(&Device::cpu()).expect("recognizer");
    direct.push(&samples).expect("samples");
    let expected = direct
        .finish(
            &tercet_models::speech::SpeechOptions::default(),
            &mut |_| true,
        )
        .expect("transcript");

    let (device, mut recognizer) = (cpu(), null_mut::<TercetRecognizer>());
    let mut transcript = null_mut::<TercetTranscript>();
    let path = c(&path);
    // SAFETY: all pointers are valid.
    ok(|e| unsafe { tercet_recognizer_open(device, path.as_ptr(), &raw mut recognizer, e) });
    let options = TercetTranscribeOptions {
        struct_size: size_of::<TercetTranscribeOptions>(),
        language: null(),
        translate: 0,
        timestamps: 0,
        condition_on_previous: 0,
        without_fallback: 1,
        seed: 0,
    };
    // SAFETY: all pointers are valid.
    ok(|e| unsafe {
        tercet_transcribe(
            recognizer,
            samples.as_ptr(),
            samples.len(),
            &raw const options,
            None,
            null_mut(),
            &raw mut transcript,
            e,
        )
    });
    // SAFETY: the call fills the view.
    let mut view: TercetTranscriptView = unsafe { std::mem::zeroed() };
    // SAFETY: the view is valid.
    ok(|e| unsafe { tercet_transcript_read(transcript, &raw mut view, e) });
    assert_eq!(text_of(view.text), expected.text());
    assert_eq!(
        (view.seconds, view.segment_count),
        (1.0, expected.segments.len())
    );
    free(transcript);
    free(recognizer);
    free(device);
}
