//! What a person does on the page.

use std::path::Path;

use serde_json::{Value, json};

use super::devtools::BrowserPage;
use crate::error::XtaskError;

const TAB: u32 = 9;
const ENTER: u32 = 13;
const ESCAPE: u32 = 27;
const RIGHT: u32 = 39;

/// What a person does in a step.
type PageStep = fn(&mut BrowserPage) -> Result<(), XtaskError>;

/// No answer is being written.
const DONE: &str = "!document.getElementById('send').disabled";
/// A tool as the settings take it.
const TOOL: &str = r#"[{"name": "add", "description": "Adds", "parameters": {"type": "object", "properties": {"a": {"type": "integer", "enum": [1, 2]}}, "required": ["a"], "additionalProperties": false}}]"#;

/// Does all steps.
///
/// # Errors
/// [`XtaskError::ServerPage`] with the first step that failed.
pub(super) fn run(page: &mut BrowserPage, url: &str) -> Result<(), XtaskError> {
    page.open_url(url)?;
    page.wait("models", "document.querySelector('#model option')")?;
    let steps: [(&str, PageStep); 11] = [
        ("names", every_control_has_a_name),
        ("keyboard", the_keyboard_reaches_everything),
        ("chat", chat),
        ("edit", edit),
        ("stop", stop),
        ("reload", reload),
        ("thoughts", thoughts),
        ("tool call", tool_call),
        ("picture", picture),
        ("embeddings", embeddings),
        ("colors", colors),
    ];
    for (name, step) in steps {
        step(page).map_err(|e| XtaskError::ServerPage {
            problem: format!("step `{name}`: {e}"),
        })?;
        println!("{name}: ok");
    }
    match page.problems() {
        [] => Ok(()),
        problems => Err(XtaskError::ServerPage {
            problem: format!("the page reported errors:\n{}", problems.join("\n")),
        }),
    }
}

fn by_text(text: &str) -> String {
    format!(
        "[...document.querySelectorAll('button')].filter((b) => b.textContent === {}).at(-1)",
        Value::from(text)
    )
}

fn choose_model(page: &mut BrowserPage, model: &str) -> Result<(), XtaskError> {
    set_field(page, "document.getElementById('model')", model)
}

/// Sets the value of a field as its own control does.
fn set_field(page: &mut BrowserPage, field: &str, value: &str) -> Result<(), XtaskError> {
    let value = Value::from(value);
    page.value(&format!(
        "(() => {{ const f = {field}; f.value = {value}; for (const kind of ['input', 'change']) \
         f.dispatchEvent(new Event(kind, {{bubbles: true}})); }})()"
    ))?;
    Ok(())
}

/// Sets fields in the dialog of settings.
fn settings(page: &mut BrowserPage, fields: &[(&str, &str)]) -> Result<(), XtaskError> {
    page.click("document.getElementById('open-settings')")?;
    page.wait("settings", "document.getElementById('settings').open")?;
    for (name, value) in fields {
        let field = format!("document.querySelector('#settings [name={name}]')");
        set_field(page, &field, value)?;
    }
    page.click("document.getElementById('close-settings')")?;
    page.wait("closed", "!document.getElementById('settings').open")?;
    page.wait("models", "document.querySelector('#model option')")
}

fn say(page: &mut BrowserPage, text: &str) -> Result<(), XtaskError> {
    page.click("document.getElementById('prompt')")?;
    page.type_text(text)?;
    page.press("Enter", ENTER)
}

fn new_chat(page: &mut BrowserPage) -> Result<(), XtaskError> {
    page.click("document.getElementById('new-chat')")?;
    page.check("empty", "!document.querySelector('article')")
}

/// Every button, field and list has a name for screen readers.
fn every_control_has_a_name(page: &mut BrowserPage) -> Result<(), XtaskError> {
    let tree = page.call("Accessibility.getFullAXTree", json!({}))?;
    let nodes = tree["nodes"].as_array().into_iter().flatten();
    let roles = ["button", "textbox", "combobox", "tab", "log", "navigation"];
    let mut seen = 0;
    for node in nodes.filter(|node| node["ignored"] != true) {
        let role = node["role"]["value"].as_str().unwrap_or_default();
        if !roles.contains(&role) {
            continue;
        }
        seen += 1;
        if node["name"]["value"]
            .as_str()
            .unwrap_or_default()
            .is_empty()
        {
            let problem = format!("a {role} has no name: {node}");
            return Err(XtaskError::ServerPage { problem });
        }
    }
    match seen >= 8 {
        true => Ok(()),
        false => Err(XtaskError::ServerPage {
            problem: format!("only {seen} controls"),
        }),
    }
}

/// Tab reaches the message and all buttons; the skip link is first.
fn the_keyboard_reaches_everything(page: &mut BrowserPage) -> Result<(), XtaskError> {
    page.press("Tab", TAB)?;
    page.check("skip link", "document.activeElement.className === 'skip'")?;
    page.value("globalThis.seen = new Set()")?;
    for _ in 0..20 {
        page.press("Tab", TAB)?;
        page.value("seen.add(document.activeElement.id)")?;
    }
    for id in [
        "chat-tab",
        "new-chat",
        "open-settings",
        "model",
        "messages",
        "prompt",
        "send",
    ] {
        page.check("reachable", &format!("seen.has('{id}')"))?;
    }
    Ok(())
}

fn chat(page: &mut BrowserPage) -> Result<(), XtaskError> {
    choose_model(page, "tiny")?;
    page.check(
        "no pictures",
        "document.getElementById('add-picture').hidden",
    )?;
    settings(page, &[("max_tokens", "12"), ("temperature", "0")])?;
    say(page, "What is a <b>trait</b>?")?;
    page.wait(
        "answer",
        &format!("{DONE} && document.querySelector('article.assistant .text')?.textContent"),
    )?;
    page.check("text stays text", "!document.querySelector('article b')")?;
    page.check(
        "speed",
        "/tokens a second/.test(document.getElementById('speed').textContent)",
    )?;
    page.check(
        "title",
        "document.querySelector('#conversations button').textContent.startsWith('What is a')",
    )
}

/// An edited message replaces the rest of the conversation.
fn edit(page: &mut BrowserPage) -> Result<(), XtaskError> {
    say(page, "And a struct?")?;
    page.wait(
        "answer",
        &format!("{DONE} && document.querySelectorAll('article').length === 4"),
    )?;
    page.click("document.querySelector('article.user button')")?;
    page.check("focus", "document.activeElement.tagName === 'TEXTAREA'")?;
    page.value("document.activeElement.select()")?;
    page.type_text("What is an enum?")?;
    page.click(&by_text("Send again"))?;
    page.wait(
        "answer",
        &format!("{DONE} && document.querySelectorAll('article').length === 2"),
    )?;
    page.check(
        "text",
        "document.querySelector('article.user .text').textContent === 'What is an enum?'",
    )
}

/// Escape stops an answer, which stays as far as it was written.
fn stop(page: &mut BrowserPage) -> Result<(), XtaskError> {
    settings(page, &[("max_tokens", "")])?;
    new_chat(page)?;
    // The page presses stop at the first words, as a quick person does.
    page.value(
        "new MutationObserver((_, watch) => { if (document.querySelector('article.running .text')?.textContent) { \
         watch.disconnect(); globalThis.wasVisible = !document.getElementById('stop').hidden; \
         document.getElementById('stop').click(); } }).observe(document.getElementById('messages'), \
         {childList: true, subtree: true})",
    )?;
    say(page, "Tell a long story about a crate.")?;
    page.wait(
        "stopped",
        &format!("{DONE} && document.querySelector('article.assistant')"),
    )?;
    page.check("the button was visible", "globalThis.wasVisible")?;
    page.check(
        "no usage, as the stream was cut",
        "!document.getElementById('speed').textContent",
    )?;
    page.check(
        "the words stay",
        "document.querySelector('article.assistant .text').textContent",
    )?;
    page.check("no error", "!document.getElementById('notice').textContent")?;
    say(page, "Go on.")?;
    page.press("Escape", ESCAPE)?;
    page.wait("stopped", DONE)
}

/// A reload shows the same conversation, and the others.
fn reload(page: &mut BrowserPage) -> Result<(), XtaskError> {
    let shown = "[...document.querySelectorAll('article .text')].map((e) => e.textContent)";
    let before = page.value(shown)?;
    page.reload()?;
    page.wait("models", "document.querySelector('#model option')")?;
    let after = page.value(shown)?;
    if before != after || before.as_array().is_none_or(Vec::is_empty) {
        let problem = format!("before the reload {before}, after it {after}");
        return Err(XtaskError::ServerPage { problem });
    }
    page.check("model", "document.getElementById('model').value === 'tiny'")?;
    page.click("document.querySelectorAll('#conversations button')[2]")?;
    page.check(
        "the other conversation",
        "document.querySelector('article.user .text').textContent === 'What is an enum?'",
    )
}

/// Thoughts are folded, and open on a click.
fn thoughts(page: &mut BrowserPage) -> Result<(), XtaskError> {
    settings(page, &[("max_tokens", "10"), ("thinking", "on")])?;
    new_chat(page)?;
    say(page, "Think.")?;
    page.wait(
        "answer",
        &format!("{DONE} && document.querySelector('article.assistant details')"),
    )?;
    page.check("folded", "!document.querySelector('article details').open")?;
    page.click("document.querySelector('article details summary')")?;
    page.check("open", "document.querySelector('article details').open")?;
    page.check(
        "thoughts",
        "document.querySelector('article details .text').textContent",
    )?;
    settings(page, &[("thinking", "")])
}

/// A call is shown, and the model reads the result that the person enters.
fn tool_call(page: &mut BrowserPage) -> Result<(), XtaskError> {
    let required = [
        ("tools", TOOL),
        ("tool_choice", "required"),
        ("max_tokens", "60"),
    ];
    settings(page, &required)?;
    new_chat(page)?;
    say(page, "Add one.")?;
    page.wait(
        "call",
        &format!("{DONE} && document.querySelector('.call textarea')"),
    )?;
    page.check(
        "name",
        "document.querySelector('.call strong').textContent === 'Calls add'",
    )?;
    page.check(
        "arguments",
        "Number.isInteger(JSON.parse(document.querySelector('.call code').textContent).a)",
    )?;
    settings(page, &[("tool_choice", "auto"), ("max_tokens", "8")])?;
    page.click("document.querySelector('.call textarea')")?;
    page.type_text("42")?;
    page.click(&by_text("Send the result"))?;
    page.wait(
        "answer",
        &format!("{DONE} && document.querySelectorAll('article.assistant').length === 2"),
    )?;
    page.check(
        "result",
        "document.querySelector('article.tool .text').textContent === '42'",
    )?;
    settings(page, &[("tools", ""), ("max_tokens", "8")])
}

/// A pasted picture is shown and sent, if the model takes pictures.
fn picture(page: &mut BrowserPage) -> Result<(), XtaskError> {
    new_chat(page)?;
    choose_model(page, "pictures")?;
    page.check("button", "!document.getElementById('add-picture').hidden")?;
    page.click("document.getElementById('prompt')")?;
    page.value(
        "(async () => { const c = new OffscreenCanvas(32, 24); const g = c.getContext('2d'); g.fillStyle = 'teal'; \
         g.fillRect(0, 0, 32, 24); const blob = await c.convertToBlob(); const data = new DataTransfer(); \
         data.items.add(new File([blob], 'teal.png', {type: 'image/png'})); \
         document.getElementById('prompt').dispatchEvent(new ClipboardEvent('paste', \
         {clipboardData: data, bubbles: true, cancelable: true})); })()",
    )?;
    page.wait(
        "preview",
        "document.querySelector('#pictures img')?.naturalWidth === 32",
    )?;
    say(page, "What is this?")?;
    page.wait(
        "answer",
        &format!("{DONE} && document.querySelector('article.assistant')"),
    )?;
    page.check(
        "picture",
        "document.querySelector('article.user img').naturalWidth === 32",
    )?;
    page.check("no preview", "!document.querySelector('#pictures img')")?;
    page.check("no error", "!document.getElementById('notice').textContent")?;
    choose_model(page, "tiny")?;
    page.check("no button", "document.getElementById('add-picture').hidden")
}

fn embeddings(page: &mut BrowserPage) -> Result<(), XtaskError> {
    page.value("document.getElementById('chat-tab').focus()")?;
    page.press("ArrowRight", RIGHT)?;
    page.check("view", "!document.getElementById('vectors').hidden")?;
    page.click("document.getElementById('texts')")?;
    page.type_text("a river\nthe house under a tree\na river")?;
    page.click(&by_text("Compare"))?;
    page.wait(
        "table",
        "document.querySelectorAll('#similarities tbody td').length === 9",
    )?;
    page.check(
        "the same text",
        "document.querySelector('#similarities tbody td:nth-child(4)').textContent.startsWith('1.000')",
    )?;
    page.click("document.getElementById('chat-tab')")
}

/// The colors follow the setting, and have enough contrast.
fn colors(page: &mut BrowserPage) -> Result<(), XtaskError> {
    let luminance = "(() => { const rgb = (c) => c.match(/[0-9.]+/g).slice(0, 3).map((x) => { x /= 255; \
                     return x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4; }); \
                     const l = ([r, g, b]) => 0.2126 * r + 0.7152 * g + 0.0722 * b; \
                     const s = getComputedStyle(document.body); \
                     return [l(rgb(s.color)), l(rgb(s.backgroundColor))]; })()";
    for (theme, is_dark) in [("dark", true), ("light", false)] {
        settings(page, &[("theme", theme)])?;
        let found = page.value(luminance)?;
        let [text, ground] = [0usize, 1].map(|at| found[at].as_f64().unwrap_or(0.5));
        let contrast = (text.max(ground) + 0.05) / (text.min(ground) + 0.05);
        if contrast < 7.0 || (text > ground) != is_dark {
            let problem = format!("{theme}: contrast {contrast}");
            return Err(XtaskError::ServerPage { problem });
        }
    }
    settings(page, &[("theme", "")])
}

/// Writes the pictures of the documentation.
pub(super) fn screenshots(
    page: &mut BrowserPage,
    url: &str,
    folder: &Path,
) -> Result<(), XtaskError> {
    page.open_url("about:blank")?;
    let origin = json!({"origin": url, "storageTypes": "local_storage"});
    page.call("Storage.clearDataForOrigin", origin)?;
    page.open_url(url)?;
    page.wait("models", "document.querySelector('#model option')")?;
    choose_model(page, "tiny")?;
    settings(page, &[("max_tokens", "60"), ("temperature", "0")])?;
    say(page, "What is a trait?")?;
    page.wait(
        "answer",
        &format!("{DONE} && document.querySelector('article.assistant')"),
    )?;
    page.screenshot(&folder.join("serve-page-light.png"))?;
    let required = [
        ("tools", TOOL),
        ("tool_choice", "required"),
        ("theme", "dark"),
    ];
    settings(page, &required)?;
    new_chat(page)?;
    say(page, "Add one.")?;
    page.wait(
        "call",
        &format!("{DONE} && document.querySelector('.call textarea')"),
    )?;
    page.screenshot(&folder.join("serve-page-dark.png"))
}
