//! Tests of the parts of scene fitting: view files, initial scenes, and relocated Gaussians.

use std::path::Path;

use tercet::{CompileOptions, Device, DeviceOptions, Tensor, devices};
use tercet_splat::fit::{CAMERA, DEGREE, FitShape, SplatFitRng, relocate};
use tercet_splat::{LookAt, SplatCamera, SplatScene, looked_at, views};

/// A camera at `(0, 0, 3)` that looks at the origin, with y up in its matrix.
#[test]
fn a_document_of_views_gives_cameras() {
    let text = r#"{"camera_angle_x": 0.8, "fl_y": 50.0, "cy": 9.5, "frames": [{"file_path": "./images/a",
        "transform_matrix": [[1,0,0,0],[0,1,0,0],[0,0,1,3],[0,0,0,1]]}]}"#;
    let all = views(text, Path::new("scene")).unwrap();
    assert_eq!(all[0].image, Path::new("scene/images/a.png"));
    let camera = all[0].camera([40, 20]).unwrap();
    assert_eq!(camera.position, [0.0, 0.0, 3.0]);
    // The right, down and forward axes.
    let axes = [[1.0, 0.0, 0.0], [0.0, -1.0, 0.0], [0.0, 0.0, -1.0]];
    assert_eq!(camera.axes, axes);
    assert!((camera.focal[0] - 20.0 / 0.4f64.tan()).abs() < 1e-9);
    assert_eq!((camera.focal[1], camera.center), (50.0, [20.0, 9.5]));
    assert_eq!(camera.resized([20, 10]).center, [10.0, 4.75]);
}

#[test]
fn cameras_agree_on_what_they_look_at() {
    let scene = SplatScene::random(50, 1, [1.0, 2.0, 3.0], 0.5, &mut SplatFitRng::new(1));
    let cameras = SplatCamera::around(&scene, [32, 24], 50.0, 9).unwrap();
    let (point, distance) = looked_at(&cameras).unwrap();
    for (axis, at) in point.into_iter().enumerate() {
        assert!((at - (axis + 1) as f64).abs() < 0.4, "{point:?}");
    }
    for camera in &cameras {
        let away = [0, 1, 2].map(|i| camera.position[i] - point[i]);
        let own = away.iter().map(|x| x * x).sum::<f64>().sqrt();
        assert!((own - distance).abs() < 1e-6 * distance);
    }
    let look = LookAt {
        eye: [0.0, 0.0, -1.0],
        target: [0.0; 3],
        up: [0.0, -1.0, 0.0],
        fov: 50.0,
    };
    let one = SplatCamera::look_at(&look, [8, 8]).unwrap();
    let beside = SplatCamera {
        position: [1.0, 0.0, -1.0],
        ..one
    };
    assert_eq!(looked_at(&[one, beside]), None);
}

#[test]
fn states_are_the_scene() {
    let mut numbers = SplatFitRng::new(3);
    for harmonics in [1, 4] {
        let mut scene = SplatScene::random(7, harmonics, [0.0; 3], 1.0, &mut numbers);
        let colors = scene.colors.iter_mut().enumerate();
        colors.for_each(|(i, x)| *x = i as f32);
        let shape = FitShape::new(7, harmonics, [4, 4]);
        let states = scene.fit_states().unwrap();
        let names: Vec<&str> = states.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, shape.names());
        let tensors: Vec<_> = states.into_iter().map(|(_, tensor)| tensor).collect();
        assert_eq!(
            SplatScene::from_fit_states(&shape, &tensors).unwrap(),
            scene
        );
        let wide = scene.with_harmonics(9);
        assert_eq!(wide.with_harmonics(harmonics), scene);
        assert_eq!(wide.colors.len(), 7 * 9 * 3);
    }
}

/// Transparent Gaussians are relocated to an opaque one. The combined transmittance afterwards
/// equals that of the opaque one before.
#[test]
fn transparent_ones_move() {
    let mut scene = SplatScene::random(3, 1, [0.0; 3], 1.0, &mut SplatFitRng::new(8));
    scene.positions[..3].copy_from_slice(&[5.0, 6.0, 7.0]);
    scene.opacities = vec![1.0, -9.0, -6.0];
    let before = scene.clone();
    assert_eq!(scene.visible().len(), 1);
    let mut numbers = SplatFitRng::new(4);
    assert_eq!(relocate(&mut scene, &mut numbers), [0, 1, 2]);
    let let_through = |x: f32| 1.0 - 1.0 / (1.0 + (-x).exp());
    for i in [1, 2] {
        let near =
            (0..3).all(|axis| (scene.positions[3 * i + axis] - before.positions[axis]).abs() < 4.0);
        assert!(near, "{:?}", scene.positions);
        assert!(scene.opacities[i] < 1.0 && scene.opacities[i] > -5.3);
    }
    let both = let_through(scene.opacities[1]).powi(2);
    assert!((both - let_through(1.0)).abs() < 1e-4);
    let mut none = before.clone();
    none.opacities = vec![-9.0; 3];
    let kept = none.clone();
    assert!(relocate(&mut none, &mut numbers).is_empty());
    assert_eq!(none, kept);
}

/// The executors of this machine, each once.
fn executors() -> Vec<Device> {
    let usable = devices().into_iter().filter(|d| d.usable);
    usable
        .map(|d| d.name)
        .filter(|n| n != "reference" && !n.contains(':'))
        .map(|n| Device::open(&n, &DeviceOptions::default()).unwrap())
        .collect()
}

/// The image of a scene from a camera in front of it.
fn drawn(device: &Device, shape: &FitShape, scene: &SplatScene, degree: f32) -> Vec<f32> {
    let look = LookAt {
        eye: [0.0, 0.0, -4.0],
        target: [0.0; 3],
        up: [0.0, -1.0, 0.0],
        fov: 50.0,
    };
    let camera = SplatCamera::look_at(&look, shape.image).unwrap();
    let camera = camera.block([0.0; 3]).unwrap();
    let degree = Tensor::scalar(degree);
    let exe = device.compile(&shape.drawing().unwrap(), &CompileOptions::new());
    let mut exe = exe.unwrap();
    for (name, state) in scene.fit_states().unwrap() {
        exe.write_state(name, &state).unwrap();
    }
    let inputs = [(CAMERA, &camera), (DEGREE, &degree)];
    let inputs = &inputs[..if shape.degree_grows { 2 } else { 1 }];
    exe.run(inputs).unwrap()[0]
        .as_slice::<f32>()
        .unwrap()
        .to_vec()
}

/// The largest difference of two images.
fn distance(a: &[f32], b: &[f32]) -> f32 {
    let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    differences.fold(0.0, f32::max)
}

#[test]
fn thin_gaussians_are_drawn_and_saved_within_the_limit() {
    let mut scene = SplatScene::random(20, 1, [0.0; 3], 1.0, &mut SplatFitRng::new(5));
    for own in scene.log_scales.chunks_exact_mut(3) {
        own.copy_from_slice(&[-1.0, -4.0, -6.0]);
    }
    let free = FitShape::new(20, 1, [24, 24]);
    let limited = free.with_max_anisotropy(Some(5.0));
    let tensors: Vec<_> = scene
        .fit_states()
        .unwrap()
        .into_iter()
        .map(|(_, t)| t)
        .collect();
    let saved = SplatScene::from_fit_states(&limited, &tensors).unwrap();
    for own in saved.log_scales.chunks_exact(3) {
        assert_eq!(own[0], -1.0);
        assert!((own[1] - (-1.0 - 5f32.ln())).abs() < 1e-6, "{own:?}");
        assert_eq!(own[1], own[2]);
    }
    for device in executors() {
        let image = drawn(&device, &limited, &scene, 0.0);
        let wanted = drawn(&device, &free, &saved, 0.0);
        let worst = distance(&image, &wanted);
        assert!(worst < 1e-5, "{}: {worst}", device.name());
        assert!(distance(&image, &drawn(&device, &free, &scene, 0.0)) > 1e-2);
    }
}

#[test]
fn degrees_above_the_active_one_are_not_drawn() {
    let mut scene = SplatScene::random(20, 9, [0.0; 3], 1.0, &mut SplatFitRng::new(6));
    for (i, x) in scene.colors.iter_mut().enumerate() {
        *x = (i * 7 % 11) as f32 / 11.0 - 0.4;
    }
    let fixed = |harmonics| FitShape::new(20, harmonics, [24, 24]);
    let grows = fixed(9).with_growing_degree(true);
    for device in executors() {
        for (degree, harmonics) in [(0.0, 1), (1.0, 4), (2.0, 9)] {
            let few = scene.with_harmonics(harmonics);
            let active = drawn(&device, &fixed(harmonics), &few, 0.0);
            let found = drawn(&device, &grows, &scene, degree);
            let worst = distance(&found, &active);
            assert!(
                worst < 1e-5,
                "{} of degree {degree}: {worst}",
                device.name()
            );
        }
        let [none, one] = [0.0, 1.0].map(|degree| drawn(&device, &grows, &scene, degree));
        assert!(distance(&none, &one) > 1e-2);
    }
}
