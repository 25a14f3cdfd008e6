//! Tests of the kernels that compute several equal maps.

use tercet_plan::ArgAccess;
use tercet_plan::internals::schedule::{BoundArray, batched_text, with_calls, with_parameters};

#[test]
fn accesses_become_calls() {
    let array = |name, access| BoundArray {
        name,
        element: "u32",
        access,
    };
    let x = array("x0", ArgAccess::Read);
    let code = "let a = x0[f(b[1]) / 2u] + raw.x0[1] + ax0[2] + x0[x0[3]];";
    let expected = "let a = x0_at(f(b[1]) / 2u) + raw.x0[1] + ax0[2] + x0_at(x0_at(3));";
    assert_eq!(with_calls(code, &x).as_deref(), Some(expected));
    let y = array("y0", ArgAccess::Write);
    let code = "if (c) { y0[v0] = out.y0; y1[v0] = y0[2]; }";
    let expected = "if (c) { y0_set(v0, out.y0); y1[v0] = y0_at(2); }";
    assert_eq!(with_calls(code, &y).as_deref(), Some(expected));
    let parameters = with_parameters("p.w[0].x + p.w[12].w", 13);
    assert_eq!(
        parameters.as_deref(),
        Some("p.w[part * 13u + 0u].x + p.w[part * 13u + 12u].w")
    );
    assert_eq!(with_calls("x0[1", &x), None);
    assert!(batched_text("fn main() {}", 2).is_none());
}
