//! Renders an image of a 3D Gaussian splatting scene.

use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;
use std::time::Instant;

use serde_json::json;
use tercet_models::splat::{
    LookAt, SplatCamera, SplatError, SplatFrame, SplatRenderer, SplatScene,
};

use crate::commands::{device, positive, within};
use crate::error::{CliError, CommandOutcome};
use crate::{output, output_path};

#[derive(clap::Args)]
pub(super) struct SplatDrawArgs {
    /// Scene: a .ply file in the format of 3D Gaussian Splatting
    #[arg(required = true)]
    scene: Option<PathBuf>,
    /// Camera as JSON, or a list of cameras such as cameras.json, with position, rotation, width,
    /// height, and fx and fy or fov [default: a camera that shows most of the scene]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["eye", "target", "up", "fov"])]
    camera: Option<PathBuf>,
    /// Index of the camera in a list
    #[arg(long, default_value_t = 0, value_name = "N", requires = "camera")]
    camera_index: usize,
    /// Position of the camera
    #[arg(long, value_name = "X,Y,Z", value_parser = vector, allow_hyphen_values = true, requires = "target")]
    eye: Option<[f64; 3]>,
    /// Point that the camera looks at
    #[arg(long, value_name = "X,Y,Z", value_parser = vector, allow_hyphen_values = true, requires = "eye")]
    target: Option<[f64; 3]>,
    /// Up direction of the image
    #[arg(long, value_name = "X,Y,Z", value_parser = up, allow_hyphen_values = true, default_value = "0,-1,0", requires = "eye")]
    up: [f64; 3],
    /// Vertical field of view in degrees
    #[arg(long, value_name = "DEGREES", allow_negative_numbers = true, value_parser = within(0.1..=179.0), default_value_t = 50.0)]
    fov: f64,
    /// Image size in pixels [default: that of the camera file, else 800x600]
    #[arg(long, value_name = "WxH", value_parser = size)]
    size: Option<[usize; 2]>,
    /// Background colour; each channel from 0 to 1
    #[arg(long, value_name = "R,G,B", value_parser = colour, allow_hyphen_values = true, default_value = "0,0,0")]
    background: [f64; 3],
    /// Output image
    #[arg(short, long, default_value = "splat.png", value_name = "FILE.png")]
    output: PathBuf,
    /// Number of frames to time, after a first frame
    #[arg(long, default_value = "3", value_name = "N", value_parser = frames)]
    frames: usize,
    /// Device to run on; see `tercet devices`
    #[arg(long, default_value = "auto", value_name = "NAME")]
    device: String,
    /// Print sizes and times as JSON
    #[arg(long)]
    json: bool,
}

/// Parses three comma-separated numbers.
pub(super) fn vector(text: &str) -> Result<[f64; 3], String> {
    let numbers = text.split(',').map(|x| x.trim().parse().ok());
    let numbers: Option<Vec<f64>> = numbers.collect();
    let numbers = numbers.filter(|list| list.iter().all(|x| x.is_finite()));
    numbers
        .and_then(|list| list.try_into().ok())
        .ok_or_else(|| "expected three numbers such as 0,1.5,-2".to_string())
}

/// Parses a direction.
fn up(text: &str) -> Result<[f64; 3], String> {
    let up = vector(text)?;
    match up.iter().any(|x| *x != 0.0) {
        true => Ok(up),
        false => Err("a direction must have a component other than 0".to_string()),
    }
}

pub(super) fn colour(text: &str) -> Result<[f64; 3], String> {
    let colour = vector(text)?;
    match colour.iter().all(|x| (0.0..=1.0).contains(x)) {
        true => Ok(colour),
        false => Err("expected three numbers from 0 to 1 such as 0,0.5,1".to_string()),
    }
}

/// Parses a number of frames. The number has a maximum, because the time of each frame is stored.
fn frames(text: &str) -> Result<usize, String> {
    const MAX_FRAMES: usize = 1 << 20;
    positive(text)
        .ok()
        .filter(|n| *n <= MAX_FRAMES)
        .ok_or_else(|| format!("expected a whole number from 1 to {MAX_FRAMES}"))
}

/// Parses a size: `640x480`
pub(super) fn size(text: &str) -> Result<[usize; 2], String> {
    let sides = text.split_once('x');
    let sides = sides.and_then(|(w, h)| Some([positive(w).ok()?, positive(h).ok()?]));
    sides.ok_or_else(|| "expected a size such as 640x480".to_string())
}

fn render_error(what: &str) -> impl FnOnce(SplatError) -> CliError {
    CliError::model(what)
}

fn camera(args: &SplatDrawArgs, scene: &SplatScene) -> Result<SplatCamera, CliError> {
    let image = args.size.unwrap_or([800, 600]);
    let what = "cannot place the camera";
    if let Some(path) = &args.camera {
        let text = std::fs::read_to_string(path).map_err(|source| CliError::File {
            path: path.clone(),
            source,
        })?;
        let camera = SplatCamera::from_json(&text, args.camera_index);
        let camera = camera.map_err(render_error(&format!("cannot read {}", path.display())))?;
        return Ok(args.size.map_or(camera, |image| camera.resized(image)));
    }
    let camera = match (args.eye, args.target) {
        (Some(eye), Some(target)) => {
            let look = LookAt {
                eye,
                target,
                up: args.up,
                fov: args.fov,
            };
            SplatCamera::look_at(&look, image)
        }
        _ => SplatCamera::in_front_of(scene, image, args.fov),
    };
    camera.map_err(render_error(what))
}

pub(super) fn run(args: &SplatDrawArgs) -> Result<CommandOutcome, CliError> {
    let png = args.output.extension();
    if !png.is_some_and(|e| e.eq_ignore_ascii_case("png")) {
        let path = args.output.display();
        let text = format!("cannot write to {path}; expected a .png file");
        return Err(CliError::Usage(text));
    }
    output_path::check(&args.output)?;
    let Some(path) = &args.scene else {
        return Err(CliError::Usage(
            "no scene is named; pass a .ply file".to_string(),
        ));
    };
    let shown = path.display().to_string();
    let scene = SplatScene::open(path).map_err(render_error(&format!("cannot read {shown}")))?;
    let camera = camera(args, &scene)?;
    let device = device(&args.device)?;
    let what = format!("cannot render {shown}");
    let background = args.background.map(|x| x as f32);
    let mut renderer =
        SplatRenderer::new(&device, &scene, camera.image).map_err(render_error(&what))?;
    let mut draw = || {
        let start = Instant::now();
        let frame = renderer
            .draw(&camera, background)
            .map_err(render_error(&what))?;
        Ok::<_, CliError>((frame, start.elapsed().as_secs_f64() * 1e3))
    };
    let (frame, first) = draw()?;
    let mut times = Vec::with_capacity(args.frames);
    for _ in 0..args.frames {
        times.push(draw()?.1);
    }
    times.sort_by(f64::total_cmp);
    let median = times[times.len() / 2];
    output_path::write(&args.output, |file| write_png(file, &frame))?;
    let ([width, height], count) = (camera.image, scene.len());
    let name = device.name().to_string();
    if args.json {
        output::json(&json!({
            "splats": count, "width": width, "height": height, "device": name,
            "first_ms": first, "frame_ms": median,
            "output": args.output.display().to_string(),
        }))?;
    }
    output::print_note(format_args!(
        "{} {}, {width}x{height} pixels on {name}: {median:.2} ms per frame (first frame {first:.2} ms); {}",
        output::count(count as u64),
        if count == 1 { "splat" } else { "splats" },
        args.output.display()
    ));
    Ok(CommandOutcome::Done)
}

fn write_png(file: File, frame: &SplatFrame) -> std::io::Result<()> {
    let [width, height] = frame.image.map(|n| n as u32);
    let mut encoder = png::Encoder::new(BufWriter::new(file), width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&frame.to_rgb8())?;
    Ok(writer.finish()?)
}
