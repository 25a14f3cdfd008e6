//! `tercet splat fit`: scenes fitted on every device of this machine, and rejected inputs.
#![cfg(feature = "splat")]
#![allow(
    clippy::unwrap_used,
    reason = "test helpers panic on errors, but clippy does not see them as test functions"
)]

mod common;

use common::{Scratch, bad, good, json, usable_devices};
use serde_json::json;
use tercet_models::splat::SplatScene;

/// Coloured balls on a ring.
fn scene() -> Vec<u8> {
    const COUNT: usize = 12;
    let mut scene = SplatScene {
        harmonics: 1,
        ..SplatScene::default()
    };
    for i in 0..COUNT {
        let turn = i as f32 / COUNT as f32 * std::f32::consts::TAU;
        let height = if i % 2 == 0 { 0.3 } else { -0.3 };
        scene.positions.extend([turn.cos(), height, turn.sin()]);
        scene.log_scales.extend([-1.2; 3]);
        scene.rotations.extend([1.0, 0.0, 0.0, 0.0]);
        scene.opacities.push(3.0);
        let part = |k: usize| if i % 3 == k { 1.5 } else { -1.0 };
        scene.colors.extend([part(0), part(1), part(2)]);
    }
    let mut bytes = Vec::new();
    scene.write_ply(&mut bytes).unwrap();
    bytes
}

fn png(path: &str, [width, height]: [u32; 2], color: png::ColorType, bytes: &[u8]) {
    let file = std::fs::File::create(path).unwrap();
    let mut encoder = png::Encoder::new(file, width, height);
    encoder.set_color(color);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header().unwrap();
    writer.write_image_data(bytes).unwrap();
    writer.finish().unwrap();
}

/// On each executor, a random initial scene at twice the default learning rates gains 6 dB on
/// held-out images, and every trained tensor changes.
#[test]
fn every_device_fits_a_scene() {
    let scratch = Scratch::new("splat-fit");
    let (from, out) = (scratch.file("from.ply", scene()), scratch.path("out.ply"));
    for device in usable_devices().iter().filter(|d| !d.contains(':')) {
        let v = json(&[
            "splat",
            "fit",
            "--from",
            &from,
            "--views",
            "8",
            "--size",
            "32x24",
            "--gaussians",
            "150",
            "--steps",
            "120",
            "--lr",
            "2",
            "--relocate-every",
            "40",
            "-o",
            &out,
            "--json",
            "--device",
            device,
        ]);
        let psnr = |name: &str| v[name].as_f64().unwrap();
        let gain = psnr("psnr_after") - psnr("psnr_before");
        assert!(gain > 6.0, "{device}: {gain:.2} dB, {}", v["psnr"]);
        assert_eq!(v["unmoved"], json!([]), "{device}");
        assert_eq!(
            (&v["views"], &v["held_out_views"]),
            (&7.into(), &1.into()),
            "{device}"
        );
        assert_eq!(v["device"], device.as_str());
        let fitted = SplatScene::open(&out).unwrap();
        assert_eq!(json!(fitted.len()), v["written"]);
        assert_eq!(fitted.harmonics, 4);
        let image = scratch.path("fitted.png");
        good(&[
            "splat", &out, "--size", "24x16", "--frames", "1", "-o", &image, "--device", device,
        ]);
    }
}

/// Two runs give the same bytes; another seed gives different bytes.
#[test]
fn fits_repeat() {
    let scratch = Scratch::new("splat-fit-repeat");
    let from = scratch.file("from.ply", scene());
    for device in usable_devices().iter().filter(|d| !d.contains(':')) {
        let fitted = |name: &str, seed: &str| {
            let out = scratch.path(name);
            good(&[
                "splat",
                "fit",
                "--from",
                &from,
                "--views",
                "3",
                "--size",
                "20x20",
                "--gaussians",
                "40",
                "--steps",
                "6",
                "--seed",
                seed,
                "-o",
                &out,
                "--device",
                device,
            ]);
            std::fs::read(out).unwrap()
        };
        let first = fitted("a.ply", "5");
        assert_eq!(first, fitted("b.ply", "5"), "{device}");
        assert_ne!(first, fitted("c.ply", "6"), "{device}");
    }
}

/// A view document with images, one with an alpha channel, and initial points.
#[test]
fn pictures_and_points_come_from_files() {
    let scratch = Scratch::new("splat-fit-files");
    let size = [16, 12];
    let pixels = (size[0] * size[1]) as usize;
    png(
        &scratch.path("a.png"),
        size,
        png::ColorType::Rgb,
        &[200, 40, 10].repeat(pixels),
    );
    png(
        &scratch.path("b.png"),
        size,
        png::ColorType::Rgba,
        &[200, 40, 10, 255].repeat(pixels),
    );
    let frame = |name: &str, x: f64| {
        json!({"file_path": name, "transform_matrix":
            [[1.0, 0.0, 0.0, x], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 3.0], [0.0, 0.0, 0.0, 1.0]]})
    };
    let document = json!({"camera_angle_x": 0.7, "frames": [frame("a", 0.0), frame("b.png", 0.2)]});
    scratch.file("transforms.json", document.to_string());
    let folder = scratch.path("");
    let points = "ply\nformat ascii 1.0\nelement vertex 3\nproperty float x\nproperty float y\n\
        property float z\nproperty uchar red\nproperty uchar green\nproperty uchar blue\nend_header\n\
        0 0 0 255 0 0\n0.3 0.1 0 0 255 0\n-0.3 -0.1 0 0 0 255\n";
    let points = scratch.file("points.ply", points);
    let out = scratch.path("out.ply");
    let base = [
        "splat", "fit", "--data", &folder, "-o", &out, "--device", "cpu", "--json",
    ];
    let v = json(
        &[
            &base[..],
            &["--init", &points, "--steps", "20", "--shrink", "2"],
        ]
        .concat(),
    );
    assert_eq!(
        [&v["gaussians"], &v["width"], &v["height"], &v["views"]],
        [&json!(3), &json!(8), &json!(6), &json!(2)]
    );
    assert!(v["psnr_after"].as_f64() > v["psnr_before"].as_f64(), "{v}");
    // The cameras of this case have parallel view directions.
    bad(&base, 1, &["--center and --box"]);
    json(
        &[
            &base[..],
            &[
                "--center", "0,0,0", "--box", "1", "--steps", "2", "--ssim", "0",
            ],
        ]
        .concat(),
    );
}

#[test]
fn bad_pictures_cameras_and_arguments() {
    // Long: a table, one row a case.
    let scratch = Scratch::new("splat-fit-bad");
    let (from, out) = (scratch.file("from.ply", scene()), scratch.path("out.ply"));
    let empty = scratch.path("empty.ply");
    let mut bytes = Vec::new();
    let none = SplatScene {
        harmonics: 1,
        ..SplatScene::default()
    };
    none.write_ply(&mut bytes).unwrap();
    std::fs::write(&empty, bytes).unwrap();
    let base = [
        "splat", "fit", "-o", &out, "--device", "cpu", "--steps", "1",
    ];
    let of = |more: &[&str], code, parts: &[&str]| bad(&[&base[..], more].concat(), code, parts);
    of(&[], 2, &["--data"]);
    of(
        &["--from", &from, "--data", "x"],
        2,
        &["cannot be used with"],
    );
    of(
        &["--from", "no.ply"],
        1,
        &["cannot read no.ply", "no such file"],
    );
    of(&["--from", &empty], 1, &["has no Gaussians"]);
    of(
        &["--from", &from, "--init", &empty],
        1,
        &["has no visible Gaussians or points"],
    );
    of(
        &["--from", &from, "--held-out", "1"],
        2,
        &["holds out all views"],
    );
    of(&["--from", &from, "--degree", "4"], 2, &["--degree"]);
    of(
        &["--from", &from, "--size", "40000x2"],
        1,
        &["at most 32768"],
    );
    of(&["--from", &from, "--views", "0"], 2, &["--views"]);
    of(
        &["--data", &scratch.path("")],
        1,
        &["has no transforms.json"],
    );
    let text = |name: &str, more: &str| {
        let turn = "[[1,0,0,0],[0,1,0,0],[0,0,1,3],[0,0,0,1]]";
        let text = format!(
            "{{{more} \"frames\": [{{\"file_path\": \"a\", \"transform_matrix\": {turn}}}, \
             {{\"file_path\": \"b\", \"transform_matrix\": {turn}}}]}}"
        );
        scratch.file(name, text)
    };
    let angle = "\"camera_angle_x\": 0.7,";
    let views = text("views.json", angle);
    of(&["--data", &views], 1, &["cannot read", "a.png"]);
    std::fs::write(scratch.path("a.png"), "no picture").unwrap();
    of(
        &["--data", &views],
        1,
        &["a.png", "not a readable PNG file"],
    );
    png(
        &scratch.path("a.png"),
        [4, 4],
        png::ColorType::Grayscale,
        &[9; 16],
    );
    png(
        &scratch.path("b.png"),
        [4, 5],
        png::ColorType::Grayscale,
        &[9; 20],
    );
    of(
        &["--data", &views],
        1,
        &["b.png", "4x5 pixels, previous images have 4x4"],
    );
    png(
        &scratch.path("b.png"),
        [4, 4],
        png::ColorType::Grayscale,
        &[9; 16],
    );
    of(
        &["--data", &views, "--shrink", "5"],
        2,
        &["too large for images of 4x4"],
    );
    let lines = |name: &str, more: &str, part: &str| {
        let path = text(name, more);
        of(&["--data", &path], 1, &["the views", part]);
    };
    lines("no_lens.json", "", "neither `camera_angle_x` nor `fl_x`");
    lines("degrees.json", "\"camera_angle_x\": 40,", "in radians");
    lines(
        "bent.json",
        "\"camera_angle_x\": 0.7, \"k1\": 0.1,",
        "undistort",
    );
    lines(
        "sizes.json",
        "\"camera_angle_x\": 0.7, \"w\": 8,",
        "which differs from `w` and `h`",
    );
    let not_finite = "{\"camera_angle_x\": 0.7, \"frames\": [{\"file_path\": \"a\", \"transform_matrix\": \
        [[1,0,0,null],[0,1,0,0],[0,0,1,3]]}]}";
    let path = scratch.file("not_finite.json", not_finite);
    of(
        &["--data", &path],
        1,
        &["frame 0", "not made of finite numbers"],
    );
    let none = scratch.file("none.json", "{\"frames\": []}");
    of(&["--data", &none], 1, &["has no views"]);
    let png = scratch.path("out.png");
    let args = [
        "splat", "fit", "--from", &from, "-o", &png, "--device", "cpu",
    ];
    bad(&args, 2, &["expected a .ply file"]);
}

/// The limits of a fit: degrees that are not active yet stay zero, no Gaussian is thinner than
/// permitted, and small gradients move less.
#[test]
fn limits_of_a_fit_show_in_the_scene() {
    let scratch = Scratch::new("splat-fit-limits");
    let from = scratch.file("from.ply", scene());
    let fitted = |name: &str, more: &[&str]| {
        let out = scratch.path(name);
        let mut args = vec![
            "splat",
            "fit",
            "--from",
            &from,
            "--views",
            "3",
            "--size",
            "20x20",
            "--gaussians",
            "40",
            "--steps",
            "30",
            "--lr",
            "5",
            "-o",
            &out,
            "--device",
            "cpu",
        ];
        args.extend(more);
        good(&args);
        SplatScene::open(&out).unwrap()
    };
    let widest = |scene: &SplatScene| {
        let ratios = scene.log_scales.chunks_exact(3).map(|own| {
            let most = own.iter().copied().fold(f32::MIN, f32::max);
            let least = own.iter().copied().fold(f32::MAX, f32::min);
            (most - least).exp()
        });
        ratios.fold(1.0, f32::max)
    };
    let higher = |scene: &SplatScene| {
        let rows = scene.colors.chunks_exact(3 * scene.harmonics);
        rows.flat_map(|row| row[3..].to_vec())
            .fold(0.0, |m: f32, x| m.max(x.abs()))
    };
    let free = fitted("free.ply", &[]);
    assert!(widest(&free) > 1.2 && higher(&free) > 0.0);
    let limited = fitted("limited.ply", &["--anisotropy", "1.1"]);
    assert!(widest(&limited) < 1.1001, "{}", widest(&limited));
    let late = fitted("late.ply", &["--degree-every", "100"]);
    assert_eq!(higher(&late), 0.0);
    assert!(higher(&fitted("early.ply", &["--degree-every", "2"])) > 0.0);
    let clipped = fitted("clipped.ply", &["--clip", "1e-9"]);
    assert_ne!(clipped.positions, free.positions);
    bad(
        &["splat", "fit", "--from", &from, "--anisotropy", "0.5"],
        2,
        &["--anisotropy", "0.5"],
    );
}
