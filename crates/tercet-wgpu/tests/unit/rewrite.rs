//! Declarations of WGSL kernels.

use tercet_wgpu::internals::{BindingRewrite, rewrite};

const KERNEL: &str = "\
// reads x, x and y
struct Params { x: u32, n: u32 }
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@binding(2) @group(0) var<storage,read> y: array<u32>; /* y, /* too */ */
@group(0) @binding(3) var<storage, read_write> z: array<u32>;
fn main() { let v = vec2<u32>(x[0], y[p.x]); z[1] = v.x + v.y; }
";

#[test]
fn modes_follow_the_binds() {
    let got = rewrite(
        KERNEL,
        &[
            BindingRewrite::ReadWrite,
            BindingRewrite::Read,
            BindingRewrite::ReadWrite,
        ],
    );
    let want = KERNEL
        .replacen("var<storage, read> x", "var<storage, read_write> x", 1)
        .replace("var<storage,read> y", "var<storage, read> y");
    assert_eq!(got, Ok(want));
}

#[test]
fn arguments_of_one_memory_become_one_variable() {
    let got = rewrite(
        KERNEL,
        &[
            BindingRewrite::ReadWrite,
            BindingRewrite::SameAs(0),
            BindingRewrite::SameAs(0),
        ],
    );
    let want = "\
// reads x, x and y
struct Params { x: u32, n: u32 }
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read_write> x_shared: array<u32>;
 /* y, /* too */ */

fn main() { let v = vec2<u32>(x_shared[0], x_shared[p.x]); x_shared[1] = v.x + v.y; }
";
    assert_eq!(got.as_deref(), Ok(want));
}

#[test]
fn locals_of_the_same_name_stay() {
    let head = "@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read> y: array<u32>;
var<workgroup> x_shared: u32;
";
    let body = "fn f(y: u32) -> u32 { return x[y]; }
fn g() -> u32 {
    var sum = y[0];
    for (var x = 0u; x < 3u; x += 1u) { sum += x + y[x]; }
    if (sum > 2u) { let y = y[1]; sum += y; } else { sum += y[2]; }
    let x = x[4];
    return f(x + sum) + y[5];
}
";
    let got = rewrite(
        &format!("{head}{body}"),
        &[BindingRewrite::ReadWrite, BindingRewrite::SameAs(0)],
    );
    let want = "@group(0) @binding(1) var<storage, read_write> x_shared_: array<u32>;

var<workgroup> x_shared: u32;
fn f(y: u32) -> u32 { return x_shared_[y]; }
fn g() -> u32 {
    var sum = x_shared_[0];
    for (var x = 0u; x < 3u; x += 1u) { sum += x + x_shared_[x]; }
    if (sum > 2u) { let y = x_shared_[1]; sum += y; } else { sum += x_shared_[2]; }
    let x = x_shared_[4];
    return f(x + sum) + x_shared_[5];
}
";
    assert_eq!(got.as_deref(), Ok(want));
}

#[test]
fn what_cannot_be_rewritten_is_refused() {
    let binds = [
        BindingRewrite::ReadWrite,
        BindingRewrite::SameAs(0),
        BindingRewrite::ReadWrite,
    ];
    let typed = KERNEL.replace("y: array<u32>", "y: array<vec4<u32>>");
    let e = rewrite(&typed, &binds).unwrap_err();
    assert_eq!(e, "`y` and `x` overlap but have different types");
    let e = rewrite("fn main() {}", &[BindingRewrite::Read]).unwrap_err();
    assert_eq!(e, "no storage buffer is declared at binding 1");
}
