//! Reader of the files.

use std::collections::HashMap;

use tercet_ir::{DType, Op, Type, one_line, parse};

use crate::case::{CaseGraph, OpCase};
use crate::fill;
use crate::scan;
use crate::statement::{ExpandedGraph, LateText, Statement};

/// An error in a file of cases.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}, line {line}: {message}")]
pub struct CaseFileError {
    /// The path of the file.
    pub file: String,
    /// Line number, from 1.
    pub line: u32,
    /// Description of the error.
    pub message: String,
}

/// The contents of one file.
///
/// ```
/// use tercet_cases::CaseFile;
/// use tercet_ir::DType;
/// let text = "
/// case pair: softmax{axis=0}(x: T[2] [0, 0]) == [0.5, 0.5]
/// refuse axis \"axis 1 is out of range\": softmax{axis=1}(x: f32[2])
/// ";
/// let file = CaseFile::read("softmax.txt", text)?;
/// let case = file.cases[0].build(DType::F16)?;
/// assert_eq!(case.graph.to_string().lines().count(), 5);
/// assert_eq!(case.expected, [(0, vec![0.5, 0.5])]);
/// assert!(file.refusals[0].error()?.contains(&file.refusals[0].message));
/// let error = CaseFile::read("softmax.txt", "case pair").err().map(|e| e.to_string());
/// assert_eq!(error.as_deref(), Some("softmax.txt, line 1: expected `:` after the header"));
/// # Ok::<(), tercet_cases::CaseError>(())
/// ```
pub struct CaseFile {
    /// The cases, in the order of the file.
    pub cases: Vec<OpCase>,
    /// The graphs that must be refused.
    pub refusals: Vec<Refusal>,
}

/// The text of a case for some dtypes.
pub(crate) struct CaseText {
    file: String,
    line: u32,
    pub(crate) dtypes: Option<Vec<DType>>,
    sizes: Vec<(String, usize, usize)>,
    runs: usize,
    fault: Option<String>,
    statements: Vec<Statement>,
}

/// A graph whose last statement must be refused, with a part of the error's text.
pub struct Refusal {
    /// The name, unique within the operator.
    pub name: String,
    /// A part of the error's text, including its causes.
    pub message: String,
    file: String,
    statements: Vec<Statement>,
}

/// A header with its statements.
struct Entry {
    is_case: bool,
    header: Statement,
    statements: Vec<Statement>,
}

impl CaseFile {
    /// Reads the text of a file; `file` is its path for errors.
    ///
    /// # Errors
    /// [`CaseFileError`] for a malformed line, or a name that is used twice. Statements are read
    /// when their graph is built.
    pub fn read(file: &str, text: &str) -> Result<CaseFile, CaseFileError> {
        let mut read = CaseFile {
            cases: Vec::new(),
            refusals: Vec::new(),
        };
        let mut names: HashMap<(bool, String), usize> = HashMap::new();
        let entries = entries(text).map_err(|e| error(file, e))?;
        for entry in entries {
            let line = entry.header.line;
            let key = |name: &str| (entry.is_case, name.to_string());
            let twice = |name: &str| error(file, (line, format!("the name `{name}` is in use")));
            if entry.is_case {
                let (name, case) = case(file, &entry).map_err(|e| error(file, e))?;
                match names.get(&key(&name)) {
                    None => {
                        names.insert(key(&name), read.cases.len());
                        read.cases.push(OpCase::from_text(name, case));
                    }
                    Some(&at) if read.cases[at].add_text(case) => {}
                    Some(_) => return Err(twice(&name)),
                }
            } else {
                let refusal = refusal(file, &entry).map_err(|e| error(file, e))?;
                if names.insert(key(&refusal.name), 0).is_some() {
                    return Err(twice(&refusal.name));
                }
                read.refusals.push(refusal);
            }
        }
        Ok(read)
    }
}

fn error(file: &str, (line, message): (u32, String)) -> CaseFileError {
    CaseFileError {
        file: file.to_string(),
        line,
        message,
    }
}

type Parsed<T> = Result<T, (u32, String)>;

/// The entries of a file: joined lines, each header with the indented statements below it.
fn entries(text: &str) -> Parsed<Vec<Entry>> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut lines = (1u32..).zip(text.lines());
    while let Some((line, first)) = lines.next() {
        if first.trim().is_empty() || first.trim_start().starts_with("//") {
            continue;
        }
        let mut joined = first.to_string();
        while scan::depth(&joined) > 0 {
            let Some((_, next)) = lines.next() else {
                return Err((line, "a bracket is not closed".to_string()));
            };
            joined.push('\n');
            joined.push_str(next);
        }
        if scan::depth(&joined) < 0 {
            return Err((line, "a bracket closes that is not open".to_string()));
        }
        let statement = |text: &str| Statement {
            line,
            text: text.to_string(),
        };
        let (word, rest) = scan::identifier(&joined);
        match (word, entries.last_mut()) {
            ("case" | "refuse", _) => entries.push(Entry {
                is_case: word == "case",
                header: statement(rest),
                statements: Vec::new(),
            }),
            ("", Some(entry)) if joined.starts_with(' ') => {
                entry.statements.push(statement(&joined));
            }
            _ => {
                return Err((
                    line,
                    "expected `case`, `refuse` or an indented statement".into(),
                ));
            }
        }
    }
    Ok(entries)
}

/// Splits a header at its colon into the name, the options and the value. The statements are the
/// value or the body.
fn split_header<'a>(
    entry: &'a Entry,
    value_prefix: &str,
) -> Parsed<(&'a str, &'a str, Vec<Statement>)> {
    let line = entry.header.line;
    let text = entry.header.text.as_str();
    let colon = scan::position(text, |_, byte| byte == b':');
    let colon = colon.ok_or_else(|| (line, "expected `:` after the header".to_string()))?;
    let (name, options) = scan::identifier(text[..colon].trim());
    let value = text[colon + 1..].trim();
    if name.is_empty() {
        return Err((line, "expected a name".to_string()));
    }
    let statements = match (value.is_empty(), entry.statements.is_empty()) {
        (false, true) => vec![Statement {
            line,
            text: format!("{value_prefix}{value}"),
        }],
        (true, false) => entry.statements.clone(),
        (true, true) => return Err((line, "expected a value or a body".to_string())),
        (false, false) => return Err((line, "expected a value or a body, found both".to_string())),
    };
    Ok((name, options.trim(), statements))
}

fn case(file: &str, entry: &Entry) -> Parsed<(String, CaseText)> {
    let line = entry.header.line;
    let (name, mut options, statements) = split_header(entry, "return ")?;
    let mut case = CaseText {
        file: file.to_string(),
        line,
        dtypes: None,
        sizes: Vec::new(),
        runs: 1,
        fault: None,
        statements,
    };
    while !options.is_empty() {
        let malformed = || (line, format!("expected an option, found `{options}`"));
        let (word, rest) = scan::identifier(options);
        let rest = match (word, rest.strip_prefix('=')) {
            ("", _) => {
                let list = scan::bracketed(options).ok_or_else(malformed)?;
                let dtypes = options[list.clone()].split_whitespace();
                let dtypes = dtypes.map(|name| {
                    let dtype = DType::from_name(name);
                    dtype.ok_or_else(|| (line, format!("`{name}` is not a dtype")))
                });
                case.dtypes = Some(dtypes.collect::<Parsed<_>>()?);
                &options[list.end + 1..]
            }
            ("runs", Some(rest)) => {
                let (runs, rest) = count(rest).ok_or_else(malformed)?;
                case.runs = runs;
                rest
            }
            ("fault", Some(rest)) => {
                let (fault, rest) = scan::string(rest).ok_or_else(malformed)?;
                case.fault = Some(fault);
                rest
            }
            (symbol, Some(rest)) => {
                let (size, rest) = count(rest).ok_or_else(malformed)?;
                let rest = rest.strip_prefix("<=").ok_or_else(malformed)?;
                let (bound, rest) = count(rest).ok_or_else(malformed)?;
                case.sizes.push((symbol.to_string(), size, bound));
                rest
            }
            _ => return Err(malformed()),
        };
        options = rest.trim_start();
    }
    Ok((name.to_string(), case))
}

fn refusal(file: &str, entry: &Entry) -> Parsed<Refusal> {
    let (name, options, statements) = split_header(entry, "%_refused = ")?;
    let message = scan::string(options).filter(|(_, rest)| rest.is_empty());
    let message = message.ok_or_else(|| {
        let message = format!("expected a part of the error in quotes, found `{options}`");
        (entry.header.line, message)
    })?;
    Ok(Refusal {
        name: name.to_string(),
        message: message.0,
        file: file.to_string(),
        statements,
    })
}

/// The number that starts a text, and the rest.
fn count(text: &str) -> Option<(usize, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit());
    let (digits, rest) = text.split_at(end.unwrap_or(text.len()));
    Some((digits.parse().ok()?, rest))
}

impl CaseText {
    pub(crate) fn runs_with(&self, dtype: DType) -> bool {
        self.dtypes
            .as_ref()
            .is_none_or(|list| list.contains(&dtype))
    }

    /// Builds the graph and data of the case.
    pub(crate) fn build(&self, c: &mut CaseGraph) -> Result<(), CaseFileError> {
        let at = |place: (u32, String)| error(&self.file, place);
        for (name, size, bound) in &self.sizes {
            c.sym(name, *size, *bound);
        }
        (c.runs, c.expected_fault) = (self.runs, self.fault.clone());
        let statements = self.statements.iter().map(|s| Statement {
            line: s.line,
            text: scan::with_dtype(&s.text, c.dtype.name()),
        });
        let expanded = ExpandedGraph::new(&statements.collect::<Vec<_>>()).map_err(at)?;
        c.graph = parse(&expanded.text).map_err(|e| at((expanded.line(e.line), e.message)))?;
        let leaves = c.graph.nodes().filter_map(|(_, node)| {
            let name = match &node.op {
                Op::Input(o) => &o.name,
                Op::Param(o) => &o.name,
                Op::State(o) => &o.name,
                _ => return None,
            };
            Some((name.as_str(), &node.outputs[0]))
        });
        let leaves: HashMap<&str, &Type> = leaves.collect();
        let sized = |ty: &Type, line| {
            ty.eval(&c.sizes)
                .map_err(|e| at((line, format!("the size of {ty}: {}", one_line(&e)))))
        };
        for (name, LateText { line, text }) in &expanded.fills {
            let ty = sized(leaves[name.as_str()], *line)?;
            let fill = fill::read(text, &ty.shape);
            let fill = fill.map_err(|e| at((*line, format!("data of `{name}`: {e}"))))?;
            c.tensors.insert(name.clone(), fill.tensor(name, ty));
        }
        for (output, LateText { line, text }) in &expanded.expected {
            let value = c.graph.outputs()[*output].value;
            let ty = sized(c.graph.ty(value), *line)?;
            let values = fill::read_values(text, &ty.shape);
            let values = values.map_err(|e| at((*line, format!("expected values: {e}"))))?;
            c.expected.push((*output, values));
        }
        if c.graph.outputs().is_empty() {
            return Err(at((self.line, "the graph has no output".to_string())));
        }
        Ok(())
    }
}

impl Refusal {
    /// The error that the last statement of the graph causes.
    ///
    /// # Errors
    /// [`CaseFileError`] when the graph is accepted, or an earlier statement is wrong.
    pub fn error(&self) -> Result<String, CaseFileError> {
        let at = |place: (u32, String)| error(&self.file, place);
        let line = self.statements.last().map_or(0, |s| s.line);
        let expanded = ExpandedGraph::new(&self.statements).map_err(at)?;
        match parse(&expanded.text) {
            Ok(_) => Err(at((line, format!("`{}` is accepted", self.name)))),
            Err(e) if e.line < expanded.last_statement => {
                Err(at((expanded.line(e.line), e.message)))
            }
            Err(e) => Ok(e.message),
        }
    }
}
