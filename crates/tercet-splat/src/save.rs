//! Writing of scenes as `.ply` files in the format of Kerbl et al.: binary little-endian, zero
//! normals, harmonics channel by channel.

use std::io::{self, Write};

use crate::SplatScene;

impl SplatScene {
    /// Writes the scene as a `.ply` file, for [`SplatScene::open`] and splat viewers.
    ///
    /// # Errors
    /// Errors of the writer; [`io::ErrorKind::InvalidInput`] if a list does not match the number of
    /// Gaussians.
    pub fn write_ply(&self, out: &mut impl Write) -> io::Result<()> {
        let (n, k) = (self.len(), self.harmonics);
        let lens = [
            self.positions.len() == 3 * n,
            self.log_scales.len() == 3 * n,
            self.rotations.len() == 4 * n,
            self.colors.len() == 3 * k * n,
            k > 0,
        ];
        if lens.contains(&false) {
            let reason = "the lists of the scene do not match its number of Gaussians";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        let mut names: Vec<String> = ["x", "y", "z", "nx", "ny", "nz"].map(String::from).to_vec();
        names.extend((0..3).map(|c| format!("f_dc_{c}")));
        names.extend((0..3 * (k - 1)).map(|i| format!("f_rest_{i}")));
        names.push("opacity".to_string());
        names.extend((0..3).map(|i| format!("scale_{i}")));
        names.extend((0..4).map(|i| format!("rot_{i}")));
        write!(
            out,
            "ply\nformat binary_little_endian 1.0\nelement vertex {n}\n"
        )?;
        for name in names {
            writeln!(out, "property float {name}")?;
        }
        writeln!(out, "end_header")?;
        let mut row = Vec::new();
        for i in 0..n {
            row.clear();
            row.extend(&self.positions[3 * i..][..3]);
            row.extend([0.0; 3]);
            let colors = &self.colors[3 * k * i..][..3 * k];
            row.extend(&colors[..3]);
            row.extend((0..3).flat_map(|c| (1..k).map(move |j| colors[3 * j + c])));
            row.push(self.opacities[i]);
            row.extend(&self.log_scales[3 * i..][..3]);
            row.extend(&self.rotations[4 * i..][..4]);
            for x in &row {
                out.write_all(&x.to_le_bytes())?;
            }
        }
        out.flush()
    }
}
