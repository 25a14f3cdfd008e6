//! HTML tables for notebooks; all text is escaped.

use tercet::{Explanation, Graph, Value, Verification};

/// Maximum number of listed nodes. The others are only counted.
const MAX_ROWS: usize = 200;

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// A table with a header row.
fn table(caption: &str, head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let cells = |row: &[String], tag: &str| {
        row.iter()
            .map(|c| format!("<{tag}>{}</{tag}>", escaped(c)))
            .collect::<String>()
    };
    let head: Vec<String> = head.iter().map(ToString::to_string).collect();
    let rows: String = rows
        .map(|row| format!("<tr>{}</tr>", cells(&row, "td")))
        .collect();
    let caption = escaped(caption);
    format!(
        "<table><caption>{caption}</caption><thead><tr>{}</tr></thead><tbody>{rows}</tbody></table>",
        cells(&head, "th")
    )
}

pub(crate) fn graph(graph: &Graph) -> String {
    let rows = graph.nodes().take(MAX_ROWS).map(|(id, node)| {
        let attrs = node
            .op
            .attrs()
            .into_iter()
            .map(|(name, value)| match value {
                tercet::attr::AttrLiteral::Graph(_) => format!("{name}=graph"),
                value => format!("{name}={}", clipped(&value.to_string())),
            });
        let list = |items: Vec<String>| items.join(", ");
        vec![
            Value { node: id, port: 0 }.to_string(),
            node.op.kind().doc().name.to_string(),
            list(attrs.collect()),
            list(node.inputs.iter().map(ToString::to_string).collect()),
            list(node.outputs.iter().map(ToString::to_string).collect()),
        ]
    });
    let more = match graph.len().saturating_sub(MAX_ROWS) {
        0 => String::new(),
        more => format!("<p>and {more} more</p>"),
    };
    let outputs: Vec<String> = graph
        .outputs()
        .iter()
        .map(|o| format!("{} = {}", o.name, o.value))
        .collect();
    let caption = format!(
        "{}; outputs: {}",
        tercet::counted(graph.len(), "node", "nodes"),
        outputs.join(", ")
    );
    table(
        &caption,
        &["value", "operator", "attributes", "operands", "type"],
        rows,
    ) + &more
}

/// A table of the properties of an object.
pub(crate) fn record(class: &str, rows: &[(&str, String)]) -> String {
    let rows = rows.iter();
    let rows = rows.map(|(name, value)| vec![(*name).to_string(), clipped(value)]);
    table(class, &["property", "value"], rows)
}

/// A table of inputs and outputs, or of other named types.
pub(crate) fn ports(class: &str, rows: Vec<(&str, String, String)>) -> String {
    let rows = rows.into_iter();
    let rows = rows.map(|(role, name, ty)| vec![role.to_string(), name, ty]);
    table(class, &["role", "name", "type"], rows)
}

/// A table with the columns of rows.
pub(crate) fn rows(
    class: &str,
    head: &[&str],
    rows: impl ExactSizeIterator<Item = Vec<String>>,
) -> String {
    let more = rows.len().saturating_sub(MAX_ROWS);
    let shown = table(class, head, rows.take(MAX_ROWS));
    match more {
        0 => shown,
        more => format!("{shown}<p>and {more} more</p>"),
    }
}

/// A text as a paragraph that keeps its line breaks.
pub(crate) fn text(class: &str, text: &str) -> String {
    format!(
        "<figure><figcaption>{}</figcaption><pre>{}</pre></figure>",
        escaped(class),
        escaped(text)
    )
}

/// The start of a long text, such as the numbers of a constant.
fn clipped(text: &str) -> String {
    match text.char_indices().nth(80) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.to_string(),
    }
}

pub(crate) fn explanation(e: &Explanation) -> String {
    let rows = e
        .kernels
        .iter()
        .map(|k| vec![k.calls.to_string(), k.op.to_string(), k.kernel.clone()]);
    let caption = format!(
        "{}: {} dispatches, {} barriers, {} bytes",
        e.target,
        e.dispatches,
        e.barriers,
        e.peak_bytes()
    );
    table(&caption, &["calls", "operator", "kernel"], rows)
}

pub(crate) fn verification(v: &Verification) -> String {
    let rows = v.nodes.iter().take(MAX_ROWS).map(|n| {
        vec![
            n.value.to_string(),
            n.op.to_string(),
            format!("{:.3}", n.error_in_tolerances),
        ]
    });
    let caption = v.to_string();
    let caption = caption.lines().last().unwrap_or_default();
    table(caption, &["value", "operator", "tolerances off"], rows)
}
