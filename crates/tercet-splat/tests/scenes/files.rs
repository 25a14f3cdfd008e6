//! Tests of Gaussian splatting: valid and invalid files, cameras, and a rendered frame.

use proptest::prelude::*;
use tercet::Device;
use tercet_splat::{LookAt, SplatCamera, SplatError, SplatRenderer, SplatScene};

/// The property names of 3DGS files, with `rest` of `f_rest_*`.
fn properties(rest: usize) -> Vec<String> {
    let names =
        |stem: &str, n: usize| -> Vec<String> { (0..n).map(|i| format!("{stem}{i}")).collect() };
    let plain = |list: &[&str]| -> Vec<String> { list.iter().map(ToString::to_string).collect() };
    [
        plain(&["x", "y", "z", "nx", "ny", "nz"]),
        names("f_dc_", 3),
        names("f_rest_", rest),
        plain(&["opacity"]),
        names("scale_", 3),
        names("rot_", 4),
    ]
    .concat()
}

fn header(format: &str, count: usize, properties: &[String]) -> String {
    let lines = properties.iter().map(|p| format!("property float {p}\n"));
    let lines: String = lines.collect();
    format!("ply\nformat {format} 1.0\ncomment ours\nelement vertex {count}\n{lines}end_header\n")
}

/// Value `k` of splat `i`.
fn number(i: usize, k: usize) -> f32 {
    (i * 100 + k) as f32 / 8.0
}

fn binary(count: usize, rest: usize) -> Vec<u8> {
    let properties = properties(rest);
    let mut bytes = header("binary_little_endian", count, &properties).into_bytes();
    for (i, k) in (0..count).flat_map(|i| (0..properties.len()).map(move |k| (i, k))) {
        bytes.extend(number(i, k).to_le_bytes());
    }
    bytes
}

fn ascii(count: usize, rest: usize) -> String {
    let properties = properties(rest);
    let mut text = header("ascii", count, &properties);
    for i in 0..count {
        let row: Vec<String> = (0..properties.len())
            .map(|k| number(i, k).to_string())
            .collect();
        text += &format!("{}\n", row.join(" "));
    }
    text
}

/// A written scene reads back identically.
#[test]
fn scenes_are_written_as_they_are_read() {
    for rest in [0, 9, 24, 45] {
        let scene = SplatScene::parse(&binary(5, rest)).unwrap();
        let mut bytes = Vec::new();
        scene.write_ply(&mut bytes).unwrap();
        assert_eq!(SplatScene::parse(&bytes).unwrap(), scene);
        let mut short = scene.clone();
        short.colors.pop();
        assert!(short.write_ply(&mut Vec::new()).is_err());
    }
}

#[test]
fn scenes_read_back() {
    for (rest, harmonics) in [(0, 1), (9, 4), (24, 9), (45, 16)] {
        let scene = SplatScene::parse(&binary(3, rest)).unwrap();
        assert_eq!((scene.len(), scene.harmonics), (3, harmonics));
        assert_eq!(scene.positions[3..6], [0, 1, 2].map(|k| number(1, k)));
        assert_eq!(scene.colors[..3], [6, 7, 8].map(|k| number(0, k)));
        let after = 9 + rest;
        assert_eq!(scene.opacities[2], number(2, after));
        let [a, b] = [after + 1, after + 4];
        assert_eq!(scene.log_scales[..3], [0, 1, 2].map(|k| number(0, a + k)));
        assert_eq!(
            scene.rotations[4..8],
            [0, 1, 2, 3].map(|k| number(1, b + k))
        );
        // The first coefficient of each channel after degree 0; the file stores the coefficients
        // channel by channel.
        if rest > 0 {
            let want = [0, 1, 2].map(|c| number(2, 9 + c * rest / 3));
            assert_eq!(scene.colors[2 * 3 * harmonics + 3..][..3], want);
        }
        assert_eq!(SplatScene::parse(ascii(3, rest).as_bytes()).unwrap(), scene);
        let dos = ascii(3, rest).replace('\n', "\r\n");
        assert_eq!(SplatScene::parse(dos.as_bytes()).unwrap(), scene);
    }
    assert!(SplatScene::parse(&binary(0, 9)).unwrap().is_empty());
}

#[test]
fn numbers_of_any_type_and_elements_before_are_read() {
    let names = properties(0);
    let types = [
        "double", "uchar", "short", "int", "float32", "int8", "uint16",
    ];
    let kinds = types.iter().cycle();
    let lines: String = (names.iter().zip(kinds.clone()))
        .map(|(name, kind)| format!("property {kind} {name}\n"))
        .collect();
    let mut bytes = format!(
        "ply\nformat binary_little_endian 1.0\nelement other 2\nproperty ushort a\nproperty char b\n\
         element vertex 1\n{lines}element face 7\nproperty list uchar int i\nend_header\n"
    )
    .into_bytes();
    bytes.extend([9; 6]);
    for (k, kind) in (0..names.len()).zip(kinds) {
        match *kind {
            "double" => bytes.extend((k as f64 + 0.5).to_le_bytes()),
            "uchar" | "int8" => bytes.push(k as u8),
            "short" | "uint16" => bytes.extend((k as u16).to_le_bytes()),
            "int" => bytes.extend((k as u32).to_le_bytes()),
            _ => bytes.extend((k as f32).to_le_bytes()),
        }
    }
    let scene = SplatScene::parse(&bytes).unwrap();
    assert_eq!(scene.positions, [0.5, 1.0, 2.0]);
    assert_eq!(scene.rotations, [13.0, 14.5, 15.0, 16.0]);
}

/// Asserts that reading a file gives this error, and returns the message.
macro_rules! refused {
    ($bytes:expr, $pattern:pat) => {{
        let error = SplatScene::parse($bytes.as_ref()).unwrap_err();
        assert!(matches!(&error, $pattern), "{error:?}");
        error.to_string()
    }};
}

#[test]
fn bad_files_are_refused() {
    use SplatError::*;
    let good = ascii(2, 9);
    refused!("", NotPly);
    refused!("plyx\n", NotPly);
    refused!("ply\nformat ascii 1.0\n", NoEnd { .. });
    refused!(
        good.replace("ascii 1.0", "binary_big_endian 1.0"),
        Format { .. }
    );
    refused!(good.replace("ascii 1.0", "ascii 2.0"), Format { .. });
    refused!(good.replace("element vertex", "element point"), NoVertices);
    let message = refused!(good.replace("float x", "half x"), Header { line: 5, .. });
    assert!(message.contains("`half` is no type"), "{message}");
    refused!(good.replace("float x", "float"), Header { .. });
    refused!(good.replace("vertex 2", "vertex -2"), Header { .. });
    refused!(good.replace("vertex 2", "vertex 1e3"), Header { .. });
    refused!(good.replace("comment", "remark"), Header { .. });
    refused!(good.replace("float nx", "float x"), Twice { .. });
    refused!(good.replace("float nx", "list uchar int i"), List { .. });
    let message = refused!(
        good.replace("float opacity", "float a")
            .replace("float rot_2", "float b"),
        Missing { .. }
    );
    assert!(message.contains("`rot_2`, `opacity`"), "{message}");
    refused!(
        good.replace("float f_rest_4", "float q"),
        Harmonics { found: 8 }
    );
    refused!(
        good.replace("float f_rest_4", "float f_rest_9"),
        Missing { .. }
    );
    refused!(
        good.replace("vertex 2", "vertex 3"),
        Ends { missing: 1, .. }
    );
    refused!(
        good.replace("vertex 2", "vertex 18446744073709551615"),
        Truncated { .. }
    );
    let huge = binary(2, 9);
    let huge = String::from_utf8_lossy(&huge).replace("vertex 2", "vertex 18446744073709551615");
    refused!(huge, Truncated { .. });
    refused!(good.replace(" 1.25 ", " x "), Row { line: 32, .. });
    refused!(good.replace(" 1.25 ", " "), Row { .. });
    refused!(good.replace(" 1.25 ", " 1 2 "), Row { .. });
}

#[test]
fn every_shorter_file_is_refused() {
    for file in [binary(2, 9), ascii(2, 9).trim_end().as_bytes().to_vec()] {
        assert!(SplatScene::parse(&file).is_ok());
        // A truncated ASCII file loses digits of its last number, which is still a number.
        let last = file.len() - if file[11] == b'a' { 5 } else { 0 };
        for len in 0..last {
            assert!(
                SplatScene::parse(&file[..len]).is_err(),
                "{len} of {}",
                file.len()
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn damage_is_an_error_or_a_scene(
        places in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        is_text in any::<bool>(),
    ) {
        let mut file = if is_text { ascii(2, 9).into_bytes() } else { binary(2, 9) };
        for (at, byte) in places {
            let at = at.index(file.len());
            file[at] = byte;
        }
        if let Ok(scene) = SplatScene::parse(&file) {
            prop_assert_eq!(scene.colors.len(), scene.len() * scene.harmonics * 3);
            prop_assert_eq!(scene.rotations.len(), scene.len() * 4);
        }
    }
}

fn look() -> LookAt {
    LookAt {
        eye: [1.0, 2.0, -5.0],
        target: [1.0, 2.0, 3.0],
        up: [0.0, -1.0, 0.0],
        fov: 90.0,
    }
}

#[test]
fn cameras_look_where_they_should() {
    let camera = SplatCamera::look_at(&look(), [64, 32]).unwrap();
    assert_eq!(camera.axes, [[1., 0., 0.], [0., 1., 0.], [0., 0., 1.]]);
    assert!((camera.focal[1] - 16.0).abs() < 1e-9, "{:?}", camera.focal);
    let block = camera.block([0.5, 0.25, 0.125]).unwrap();
    let block = block.as_slice::<f32>().unwrap();
    assert_eq!(block[..4], [1.0, 0.0, 0.0, -1.0]);
    assert_eq!([block[7], block[11]], [-2.0, 5.0]);
    assert_eq!(block[18..20], [32.0, 16.0]);
    assert_eq!(block[22..], [0.5, 0.25, 0.125]);
    let json = r#"[{"id": 0}, {"id": 1, "img_name": "a", "width": 64, "height": 32, "fov": 90,
        "position": [1, 2, -5], "rotation": [[1, 0, 0], [0, 1, 0], [0, 0, 1]]}]"#;
    let read = SplatCamera::from_json(json, 1).unwrap();
    let numbers = |camera: &SplatCamera| {
        let block = camera.block([0.0; 3]).unwrap();
        block.as_slice::<f32>().unwrap().to_vec()
    };
    assert_eq!(numbers(&read), numbers(&camera));
    let wide = read.resized([128, 64]);
    assert!((wide.focal[0] - 32.0).abs() < 1e-9 && wide.image == [128, 64]);
    let pixels = json.replace(r#""fov": 90"#, r#""fx": 20, "fy": 30"#);
    assert_eq!(
        SplatCamera::from_json(&pixels, 1).unwrap().focal,
        [20.0, 30.0]
    );
}

#[test]
fn bad_cameras_are_refused() {
    let image = [8, 8];
    let of = |change: fn(&mut LookAt)| {
        let mut look = look();
        change(&mut look);
        SplatCamera::look_at(&look, image)
    };
    assert!(of(|l| l.target = l.eye).is_err());
    assert!(of(|l| l.up = [0.0, 0.0, 2.0]).is_err());
    assert!(of(|l| l.up = [0.0; 3]).is_err());
    assert!(of(|l| l.fov = 180.0).is_err());
    assert!(of(|l| l.eye[0] = f64::NAN).is_err());
    let good = r#"{"position": [0, 0, 0], "rotation": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
        "width": 8, "height": 8, "fx": 9, "fy": 9}"#;
    assert!(SplatCamera::from_json(good, 0).is_ok());
    for (from, to, part) in [
        ("{", "", "no JSON document"),
        ("[0, 0, 0]", "[0, 0]", "`position`"),
        ("[0, 1, 0]", "[0, 2, 0]", "right angles"),
        (", [0, 0, 1]]", "]", "three rows"),
        (r#""width": 8"#, r#""width": 0"#, "`width`"),
        (r#""height": 8"#, r#""height": 1.5"#, "`height`"),
        (r#""fx": 9"#, r#""fx": -9"#, "`fx`"),
        (r#", "fy": 9"#, "", "neither"),
    ] {
        let e = SplatCamera::from_json(&good.replace(from, to), 0).unwrap_err();
        assert!(e.to_string().contains(part), "{from}: {e}");
    }
    assert!(SplatCamera::from_json(&format!("[{good}]"), 1).is_err());
}

#[test]
fn a_frame_is_drawn() {
    let mut scene = SplatScene::parse(&binary(1, 0)).unwrap();
    scene.positions = vec![1.0, 2.0, 3.0];
    scene.log_scales = vec![0.0; 3];
    scene.rotations = vec![1.0, 0.0, 0.0, 0.0];
    scene.opacities = vec![20.0];
    // Red 1, green 0.5, blue below 0.
    scene.colors = vec![0.5 / 0.28209479, 0.0, -9.0];
    for camera in [
        SplatCamera::look_at(&look(), [33, 17]),
        SplatCamera::in_front_of(&scene, [33, 17], 40.0),
    ] {
        let camera = camera.unwrap();
        let mut renderer = SplatRenderer::new(&Device::cpu(), &scene, [33, 17]).unwrap();
        let frame = renderer.draw(&camera, [0.0, 0.0, 1.0]).unwrap();
        let middle = 3 * (8 * 33 + 16);
        let rgb = &frame.to_rgb8()[middle..middle + 3];
        assert!(
            rgb[0] > 245 && (120..=128).contains(&rgb[1]) && rgb[2] < 8,
            "{rgb:?}"
        );
        let small = SplatCamera::look_at(&look(), [32, 17]).unwrap();
        assert!(matches!(
            renderer.draw(&small, [0.0; 3]),
            Err(SplatError::Camera { .. })
        ));
    }
}
