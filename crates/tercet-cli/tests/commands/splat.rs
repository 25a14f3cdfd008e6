//! `tercet splat`: images of a generated scene, on every device of this machine, compared with the
//! reference.

use std::f32::consts::PI;

use crate::common::{Scratch, bad, good, json};
use tercet::Device;
use tercet_models::splat::{LookAt, SplatCamera, SplatRenderer, SplatScene};

/// A shell of flat splats around the origin, with colours by position and direction.
fn scene() -> Vec<u8> {
    const COUNT: usize = 90;
    let names = "x y z f_dc_0 f_dc_1 f_dc_2 f_rest_0 f_rest_1 f_rest_2 f_rest_3 f_rest_4 f_rest_5 f_rest_6 \
                 f_rest_7 f_rest_8 opacity scale_0 scale_1 scale_2 rot_0 rot_1 rot_2 rot_3";
    let lines: String = names
        .split_whitespace()
        .map(|name| format!("property float {name}\n"))
        .collect();
    let mut bytes = format!(
        "ply\nformat binary_little_endian 1.0\nelement vertex {COUNT}\n{lines}end_header\n"
    )
    .into_bytes();
    for i in 0..COUNT {
        let t = (i as f32 + 0.5) / COUNT as f32;
        let (turn, y) = (2.4 * PI * i as f32, 1.0 - 2.0 * t);
        let r = (1.0 - y * y).sqrt();
        let at = [r * turn.cos(), y, r * turn.sin()];
        let mut row = at.to_vec();
        row.extend(at.map(|x| 1.2 * x));
        row.extend((0..9).map(|k| 0.4 * (1.7 * k as f32 + 5.0 * t).sin()));
        row.push(4.0 * t - 1.0);
        row.extend([-1.9, -1.6, -3.0]);
        row.extend([1.0, 0.5 * turn.sin(), t, -0.3]);
        row.iter().for_each(|x| bytes.extend(x.to_le_bytes()));
    }
    bytes
}

/// Size and bytes of an image file, three bytes per pixel.
fn pixels(path: &str) -> ([usize; 2], Vec<u8>) {
    let file = std::io::BufReader::new(std::fs::File::open(path).unwrap());
    let mut reader = png::Decoder::new(file).read_info().unwrap();
    let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut bytes).unwrap();
    assert_eq!(info.color_type, png::ColorType::Rgb);
    assert_eq!(info.bit_depth, png::BitDepth::Eight);
    ([info.width as usize, info.height as usize], bytes)
}

#[test]
fn every_device_draws_what_the_reference_does() {
    let scratch = Scratch::new("splat-devices");
    let (path, image) = (scratch.file("scene.ply", scene()), scratch.path("a.png"));
    let look = LookAt {
        eye: [1.0, -0.75, -3.0],
        target: [0.1, 0.0, 0.0],
        up: [0.0, -1.0, 0.0],
        fov: 50.0,
    };
    let size = [75, 50];
    let camera = SplatCamera::look_at(&look, size).unwrap();
    let scene = SplatScene::open(&path).unwrap();
    let mut renderer = SplatRenderer::new(&Device::reference(), &scene, size).unwrap();
    let want = renderer.draw(&camera, [0.25, 0.5, 0.75]).unwrap();
    let covered = want.transmittance.iter().filter(|t| **t < 0.5).count();
    assert!(covered > 500, "{covered} pixels show something");
    let want = want.to_rgb8();
    for info in tercet::devices().iter().filter(|d| d.usable) {
        let args = [
            "splat",
            &path,
            "--eye",
            "1,-0.75,-3",
            "--target",
            "0.1,0,0",
            "--fov",
            "50",
            "--size",
            "75x50",
            "--background",
            "0.25,0.5,0.75",
            "--device",
            &info.name,
            "-o",
            &image,
        ];
        let run = good(&args);
        assert!(run.err.contains("90 splats, 75x50 pixels"), "{}", run.err);
        assert!(run.err.contains("ms per frame"), "{}", run.err);
        let (sides, got) = pixels(&image);
        assert_eq!(sides, size);
        // A colour near a rounding border may round to either byte. A splat near the visibility
        // threshold may be drawn or not.
        let off = |by: u8| {
            let pairs = got.iter().zip(&want);
            pairs.filter(|(a, b)| a.abs_diff(**b) > by).count()
        };
        assert_eq!(
            (off(1), off(0) > got.len() / 100),
            (0, false),
            "{}",
            info.name
        );
    }
}

#[test]
fn cameras_come_from_files_and_by_themselves() {
    let scratch = Scratch::new("splat-cameras");
    let (path, image) = (scratch.file("scene.ply", scene()), scratch.path("a.png"));
    let camera = r#"[{"width": 40, "height": 30, "position": [0, 0, -4], "fx": 40, "fy": 40,
        "rotation": [[1, 0, 0], [0, 1, 0], [0, 0, 1]]}]"#;
    let camera = scratch.file("cameras.json", camera);
    let base = ["splat", &path, "--device", "cpu", "-o", &image, "--json"];
    let of = |more: &[&str]| json(&[&base[..], more].concat());
    let v = of(&["--camera", &camera, "--frames", "1"]);
    assert_eq!(
        (&v["splats"], &v["width"], &v["height"]),
        (&90.into(), &40.into(), &30.into())
    );
    assert!(v["frame_ms"].as_f64().unwrap() > 0.0);
    let (sides, from_file) = pixels(&image);
    assert_eq!(sides, [40, 30]);
    // The same camera by position and angle: 30 pixels at a focal length of 40.
    let fov = (2.0 * (15f64 / 40.0).atan().to_degrees()).to_string();
    of(&[
        "--eye", "0,0,-4", "--target", "0,0,1", "--fov", &fov, "--size", "40x30",
    ]);
    let (_, by_place) = pixels(&image);
    let off = from_file
        .iter()
        .zip(&by_place)
        .filter(|(a, b)| a.abs_diff(**b) > 1);
    assert_eq!(off.count(), 0);
    of(&["--camera", &camera, "--size", "20x15"]);
    assert_eq!(pixels(&image).0, [20, 15]);
    // The default camera shows the scene in the middle of the image.
    of(&["--size", "40x30"]);
    let (_, bytes) = pixels(&image);
    assert!(bytes[3 * (15 * 40 + 20)..][..3].iter().any(|b| *b > 32));
    assert_eq!(bytes[..3], [0, 0, 0]);
}

#[test]
fn bad_scenes_cameras_and_arguments() {
    let scratch = Scratch::new("splat-bad");
    let (path, image) = (scratch.file("scene.ply", scene()), scratch.path("a.png"));
    let cut = scene();
    let cut = scratch.file("cut.ply", &cut[..cut.len() - 1]);
    let camera = scratch.file("camera.json", "{\"width\": 3}");
    let base = ["splat", "--device", "cpu", "-o", &image];
    let of = |more: &[&str], code, parts: &[&str]| bad(&[&base[..], more].concat(), code, parts);
    of(&["no.ply"], 1, &["cannot read no.ply", "no such file"]);
    of(
        &[&cut],
        1,
        &["90 of `vertex` need 8280 bytes and 8279 are left"],
    );
    of(&[&camera], 1, &["not a PLY file"]);
    of(&[&path, "--camera", &camera], 1, &["`position`"]);
    of(&[&path, "--camera", "no.json"], 1, &["cannot read no.json"]);
    of(
        &[&path, "--eye", "0,0,0", "--target", "0,0,0"],
        1,
        &["eye and target are the same point"],
    );
    of(
        &[&path, "--size", "40000x3"],
        1,
        &["40000 pixels; expected at most 32768"],
    );
    of(&[&path, "--size", "40"], 2, &["expected a size such as"]);
    of(&[&path, "--size", "0x0"], 2, &["expected a size such as"]);
    of(&[&path, "--eye", "nan,0,0"], 2, &["three numbers"]);
    of(
        &[&path, "--up", "0,0,0"],
        2,
        &["--up", "a direction must have"],
    );
    of(&[&path, "--up", "0,1,0"], 2, &["--eye"]);
    let beside = [&path, "--eye", "0,0,-4", "--target", "0,0,0", "--up"];
    let along = [&beside[..], &["0,0,2"]].concat();
    of(&along, 1, &["up is parallel to the viewing direction"]);
    of(&[&path, "--background", "0,2,0"], 2, &["from 0 to 1"]);
    of(&[&path, "--background", "-1,0,0"], 2, &["from 0 to 1"]);
    of(&[&path, "--frames", "999999999999"], 2, &["from 1 to"]);
    of(&[&path, "--fov", "-1"], 2, &["from 0.1 to 179"]);
    let jpeg = scratch.path("s.jpg");
    let args = ["splat", &path, "--device", "cpu", "-o", &jpeg];
    bad(&args, 2, &["s.jpg", ".png"]);
    of(&[&path, "--eye", "1,2"], 2, &["expected three numbers"]);
    of(&[&path, "--eye", "1,2,3"], 2, &["--target"]);
    let nowhere = scratch.path("none/a.png");
    bad(
        &[
            "splat", "--device", "cpu", "--size", "3x2", "-o", &nowhere, &path,
        ],
        1,
        &["cannot write"],
    );
}
