"""Small pictures of every kind that files have, and what Pillow makes of them (`resized.json`).

    pip install pillow numpy
    python pictures.py
"""

import json
import pathlib

import numpy
from PIL import Image, ImageOps

HERE = pathlib.Path(__file__).parent / "pictures"
FILTERS = {1: "Lanczos", 2: "Bilinear", 3: "Bicubic", 4: "Box", 5: "Hamming"}


def waves(width, height, channels, seed):
    """Smooth colours with an edge and some noise."""
    draw = numpy.random.default_rng(seed)
    y, x = numpy.mgrid[0:height, 0:width]
    planes = []
    for _ in range(channels):
        a, b, c = draw.uniform(0.1, 0.6, 3)
        plane = 128 + 90 * numpy.sin(a * x + b * y + 6 * c) + 40 * (x > width * c)
        planes.append(plane + draw.normal(0, 12, plane.shape))
    return numpy.clip(numpy.stack(planes, -1), 0, 255).astype(numpy.uint8)


def main():
    HERE.mkdir(exist_ok=True)
    wide = Image.fromarray(waves(41, 27, 3, 1))
    wide.save(HERE / "wide.png")
    Image.fromarray(waves(22, 45, 3, 2)).save(HERE / "tall.png")
    Image.fromarray(waves(30, 30, 4, 3), "RGBA").save(HERE / "clear.png")
    Image.fromarray(waves(19, 24, 1, 4)[..., 0]).save(HERE / "gray.png")
    Image.fromarray(waves(24, 20, 3, 5)).quantize(12).save(HERE / "palette.png")
    Image.fromarray(waves(40, 32, 3, 6)).save(HERE / "photo.jpg", quality=92, subsampling=0)
    turned = Image.fromarray(waves(32, 24, 3, 7))
    exif = Image.Exif()
    exif[0x0112] = 6
    turned.save(HERE / "turned.jpg", quality=92, subsampling=0, exif=exif)
    own = Image.fromarray(waves(26, 21, 3, 8))
    own.save(HERE / "lossless.webp", lossless=True)
    own.save(HERE / "lossy.webp", quality=90)
    Image.fromarray(waves(17, 13, 4, 9), "RGBA").save(HERE / "clear.webp", lossless=True, exact=True, exif=exif)
    frames = [Image.fromarray(waves(20, 18, 3, seed)) for seed in (10, 11)]
    frames[0].save(HERE / "frames.webp", save_all=True, append_images=frames[1:], lossless=True)
    colors = [frame.quantize(20) for frame in frames]
    colors[0].save(HERE / "frames.gif", save_all=True, append_images=colors[1:])
    colors[1].save(HERE / "interlaced.gif", interlace=1, transparency=3)
    # A frame that is smaller than its canvas, after a palette of four colours.
    part = bytes.fromhex("474946383961" "05000400" "f10000" "0a141e" "ff0000" "00ff00" "0000ff"
        "2c" "01000100" "03000200" "00" "02" "04" "8cb8502b" "00" "3b")
    (HERE / "part.gif").write_bytes(part)
    found = []
    for name in sorted(p.name for p in HERE.iterdir() if p.suffix in (".png", ".jpg", ".webp", ".gif")):
        own = ImageOps.exif_transpose(Image.open(HERE / name)).convert("RGB")
        found.append({"picture": name, "size": own.size, "rgb": own.tobytes().hex()})
    for number, name in FILTERS.items():
        for size in ((9, 7), (50, 11)):
            own = wide.resize(size, resample=Image.Resampling(number)).tobytes().hex()
            found.append({"picture": "wide.png", "filter": name, "size": size, "rgb": own})
    (HERE / "resized.json").write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
