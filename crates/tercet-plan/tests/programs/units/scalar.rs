//! Tests of the WGSL fragments with scalar functions.

use tercet_ir::scalar::UnaryFn;
use tercet_plan::internals::scalar::{WgslHelper, text};

#[test]
fn a_fragment_has_each_function_of_floats() {
    for f in UnaryFn::ALL.iter().filter(|f| **f != UnaryFn::Not) {
        let name = format!("f_{}", f.name());
        assert!(WgslHelper::with_function(&name).is_some(), "{name}");
    }
}

#[test]
fn every_piece_is_valid_with_what_it_needs_alone() {
    for &piece in WgslHelper::ALL {
        assert!(piece.needs().iter().all(|n| *n < piece), "{piece:?}");
        let text = text(&[piece]);
        let module = naga::front::wgsl::parse_str(&text)
            .unwrap_or_else(|e| panic!("{piece:?}: {}", e.emit_to_string(&text)));
        naga::valid::Validator::new(
            naga::valid::ValidationFlags::all(),
            // `unpack2x16float` is core WGSL, but naga requires a flag for it, because OpenGL
            // may lack it.
            naga::valid::Capabilities::SHADER_FLOAT16_IN_FLOAT32,
        )
        .validate(&module)
        .unwrap_or_else(|e| panic!("{piece:?}: {}", e.emit_to_string(&text)));
    }
}
