/// A WGSL source as programs contain it: without indentation, empty lines, and lines that are comments. Marks that the
/// library reads stay: lines for native operations, and the word that asks for a subgroup size.
fn shipped_text(source: &str) -> String {
    let is_read = |line: &str| line.starts_with("// native: ") || line.contains("subgroup");
    let lines = source.lines().map(str::trim);
    let kept = lines.filter(|line| !line.is_empty() && (!line.starts_with("//") || is_read(line)));
    kept.map(|line| format!("{line}\n")).collect()
}
