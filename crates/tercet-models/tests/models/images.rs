//! Tests of image decoding, and of invalid vision model folders with the messages of their errors.

use std::path::{Path, PathBuf};

use crate::common::temp_dir;
use serde_json::{Value, json};
use tercet::Device;
use tercet_models::image::ResampleFilter;
use tercet_models::{EncoderOptions, Error, Image, ImageError, ModelFiles};

fn of_tests(name: &str) -> PathBuf {
    crate::common::data("vision").join(name)
}

fn bytes(hex: &str) -> Vec<u8> {
    let digit = |c: u8| (c as char).to_digit(16).unwrap() as u8;
    let pairs = hex.as_bytes().chunks_exact(2);
    pairs.map(|p| digit(p[0]) * 16 + digit(p[1])).collect()
}

fn decoded(bytes: &[u8]) -> Result<Image, ImageError> {
    Image::decode(bytes, Path::new("picture.png"))
}

/// A PNG file with a header for this size and colour type, and one data chunk.
fn png(width: u32, height: u32, kind: u8) -> Vec<u8> {
    let table = |mut c: u32| {
        for _ in 0..8 {
            c = if c & 1 == 1 {
                0xEDB8_8320 ^ (c >> 1)
            } else {
                c >> 1
            };
        }
        c
    };
    let crc = |bytes: &[u8]| {
        let step = |c: u32, b: &u8| table((c ^ u32::from(*b)) & 0xFF) ^ (c >> 8);
        !bytes.iter().fold(u32::MAX, step)
    };
    let chunk = |name: &[u8; 4], data: &[u8]| {
        let body = [name.as_slice(), data].concat();
        let (len, crc) = ((data.len() as u32).to_be_bytes(), crc(&body).to_be_bytes());
        [len.as_slice(), &body, &crc].concat()
    };
    let header = [
        &width.to_be_bytes()[..],
        &height.to_be_bytes(),
        &[8, kind, 0, 0, 0],
    ]
    .concat();
    let start = b"\x89PNG\r\n\x1a\n".to_vec();
    // A deflate stream without data.
    let data = [0x78, 0x9C, 0x03, 0x00, 0x00, 0x00, 0x00, 0x01];
    [
        start,
        chunk(b"IHDR", &header),
        chunk(b"IDAT", &data),
        chunk(b"IEND", &[]),
    ]
    .concat()
}

#[test]
fn pictures_are_read_and_resized_as_the_reference_does() {
    let file = std::fs::read(of_tests("pictures/resized.json")).unwrap();
    let all: Vec<Value> = serde_json::from_slice(&file).unwrap();
    assert!(all.len() > 10);
    for case in &all {
        let name = case["picture"].as_str().unwrap();
        let picture = Image::open(of_tests("pictures").join(name)).unwrap();
        let size = [0, 1].map(|i| case["size"][i].as_u64().unwrap() as usize);
        let filter = match case["filter"].as_str() {
            None => None,
            Some("Box") => Some(ResampleFilter::Box),
            Some("Bilinear") => Some(ResampleFilter::Bilinear),
            Some("Hamming") => Some(ResampleFilter::Hamming),
            Some("Bicubic") => Some(ResampleFilter::Bicubic),
            Some("Lanczos") => Some(ResampleFilter::Lanczos),
            Some(other) => panic!("{other}"),
        };
        let picture = match filter {
            Some(filter) => picture.resized(size[0], size[1], filter).unwrap(),
            None => picture,
        };
        assert_eq!([picture.width(), picture.height()], size, "{case}");
        let want = bytes(case["rgb"].as_str().unwrap());
        let off = picture.rgb().iter().zip(&want).map(|(a, b)| a.abs_diff(*b));
        let worst = off.max().unwrap();
        // Decoders differ in the rounding of their transforms.
        let most = match name {
            name if name.ends_with(".jpg") => 3,
            "lossy.webp" => 2,
            _ => 0,
        };
        assert!(worst <= most, "{name} {filter:?}: off by {worst}");
        assert_eq!(picture.rgb().len(), want.len());
    }
}

#[test]
fn files_that_are_no_pictures_are_refused() {
    let whole = std::fs::read(of_tests("pictures/wide.png")).unwrap();
    let photo = std::fs::read(of_tests("pictures/photo.jpg")).unwrap();
    for bytes in [&whole[..0], &whole[..60], b"GIF89a", &photo[..200]] {
        let refused = decoded(bytes).unwrap_err();
        assert!(
            matches!(refused, ImageError::Undecodable { .. }),
            "{refused:?}"
        );
        assert!(refused.to_string().contains("picture.png"), "{refused}");
    }
    for name in [
        "lossless.webp",
        "lossy.webp",
        "frames.webp",
        "frames.gif",
        "part.gif",
    ] {
        let file = std::fs::read(of_tests("pictures").join(name)).unwrap();
        assert!(decoded(&file).is_ok(), "{name}");
        for cut in [12, 20, file.len() / 3] {
            let refused = decoded(&file[..cut]).unwrap_err();
            let is_refused = matches!(refused, ImageError::Undecodable { .. });
            assert!(is_refused, "{name} {cut}: {refused:?}");
        }
        for at in (0..file.len()).step_by(3) {
            let mut damaged = file.clone();
            damaged[at] ^= 0x55;
            let _ = decoded(&damaged);
        }
    }
    // A canvas of four thousand million pixels.
    let mut bomb = std::fs::read(of_tests("pictures/part.gif")).unwrap();
    bomb[6..10].fill(0xff);
    let refused = decoded(&bomb).unwrap_err();
    assert!(matches!(refused, ImageError::Size { .. }), "{refused:?}");
    // Any changed byte gives an error or other pixels.
    for at in (0..photo.len()).step_by(7) {
        let mut damaged = photo.clone();
        damaged[at] ^= 0x55;
        let _ = decoded(&damaged);
    }
    for at in (0..whole.len()).step_by(11) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x55;
        let _ = decoded(&damaged);
    }
}

#[test]
fn sizes_are_bounded_before_there_is_memory() {
    for (width, height) in [
        (0, 5),
        (5, 0),
        (100_000, 1),
        (60_000, 60_000),
        (u32::MAX, u32::MAX),
    ] {
        let refused = decoded(&png(width, height, 2)).unwrap_err();
        assert!(
            matches!(
                refused,
                ImageError::Size { .. } | ImageError::Undecodable { .. }
            ),
            "{refused:?}"
        );
    }
    // A short stream does not decode to a hundred million pixels.
    assert!(decoded(&png(10_000, 10_000, 2)).is_err());
    let small = Image::from_rgb(1, 1, vec![0; 3]).unwrap();
    for (width, height) in [(0, 1), (1 << 17, 1), (1 << 15, 1 << 15)] {
        let refused = small
            .resized(width, height, ResampleFilter::Bicubic)
            .unwrap_err();
        assert!(matches!(refused, ImageError::Size { .. }), "{refused:?}");
    }
    let refused = Image::from_rgb(2, 2, vec![0; 11]).unwrap_err();
    assert!(matches!(refused, ImageError::Bytes { .. }), "{refused:?}");
}

/// A copy of a test data folder with changed fields of a file; `null` removes a field.
fn changed(name: &str, to: &str, file: &str, fields: &Value) -> PathBuf {
    let dir = temp_dir(to);
    std::fs::create_dir_all(&dir).unwrap();
    for entry in std::fs::read_dir(of_tests(name)).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, dir.join(path.file_name().unwrap())).unwrap();
    }
    let path = dir.join(file);
    let mut json: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for (name, value) in fields.as_object().unwrap() {
        let object = json.as_object_mut().unwrap();
        match value.is_null() {
            true => drop(object.remove(name)),
            false => drop(object.insert(name.clone(), value.clone())),
        }
    }
    std::fs::write(path, json.to_string()).unwrap();
    dir
}

fn features(dir: &Path, picture: &Path) -> Result<Vec<Vec<f32>>, Error> {
    let files = ModelFiles::open(dir)?;
    let mut encoder = files.image_embedder(&Device::cpu(), &EncoderOptions::default())?;
    Ok(encoder.embed_files(&[picture])?)
}

#[test]
fn fields_that_change_the_result_are_named() {
    let picture = of_tests("pictures/wide.png");
    let processor = "preprocessor_config.json";
    let config = "config.json";
    let cases = [
        (processor, json!({"do_flip": true}), "`do_flip`"),
        (processor, json!({"resample": 0}), "resample"),
        (
            processor,
            json!({"size": {"longest_edge": 9}}),
            "size.height",
        ),
        (
            processor,
            json!({"size": {"height": 16, "width": 16, "max": 2}}),
            "`size.max`",
        ),
        (processor, json!({"size": 0}), "size"),
        (processor, json!({"size": 17}), "17 pixels high"),
        (
            processor,
            json!({"image_std": [1.0, 0.0, 1.0]}),
            "image_std",
        ),
        (
            processor,
            json!({"image_processor_type": "SamImageProcessor"}),
            "image_processor_type",
        ),
        (
            processor,
            json!({"do_resize": false}),
            "27 pixels high and 41 wide",
        ),
        (config, json!({"num_channels": 1}), "num_channels"),
        (
            config,
            json!({"patch_size": 17}),
            "patches of [17, 17] pixels",
        ),
        (config, json!({"hidden_size": 17}), "17 is not a multiple"),
        (config, json!({"num_hidden_layers": 1}), "layer.1"),
        (config, json!({"model_type": "beit"}), "beit"),
    ];
    for (file, fields, named) in cases {
        let dir = changed("vit-a", "vision-fields", file, &fields);
        let refused = tercet::one_line(&features(&dir, &picture).unwrap_err());
        assert!(refused.contains(named), "{fields}: {refused}");
    }
    let dir = changed(
        "vit-a",
        "vision-fields",
        config,
        &json!({"architectures": ["ViTModel"]}),
    );
    let files = ModelFiles::open(dir).unwrap();
    let refused = files.image_classifier(&Device::cpu(), &EncoderOptions::default());
    let refused = tercet::one_line(&refused.err().unwrap());
    assert!(refused.contains("ForImageClassification"), "{refused}");
    let dir = changed("vit-a", "vision-fields", config, &json!({}));
    std::fs::remove_file(dir.join(processor)).unwrap();
    let refused = tercet::one_line(&features(&dir, &picture).unwrap_err());
    assert!(refused.contains(processor), "{refused}");
}
