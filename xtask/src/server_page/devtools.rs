//! A page in Chromium, driven by the DevTools protocol over a pair of pipes. <https://chromedevtools.github.io/devtools-protocol/>

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::error::{self, XtaskError};

/// Maximum time of a step.
const PATIENCE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(20);
/// Gives the browser its pipes as descriptors 3 and 4, which it expects.
const SHELL: &str = "exec 3<&0 4>&1 </dev/null >/dev/null 2>&1; exec \"$@\"";

/// A page of a headless browser, which is closed on drop.
pub(super) struct BrowserPage {
    child: Child,
    input: ChildStdin,
    messages: Receiver<Value>,
    next_id: u64,
    session: String,
    /// Errors that the page reported.
    problems: Vec<String>,
}

fn failed(problem: impl Into<String>) -> XtaskError {
    XtaskError::ServerPage {
        problem: problem.into(),
    }
}

impl BrowserPage {
    /// Opens an empty page with a new profile.
    pub(super) fn open(program: &Path, profile: &Path) -> Result<BrowserPage, XtaskError> {
        if profile.exists() {
            fs::remove_dir_all(profile).map_err(error::file("remove", profile))?;
        }
        let mut command = Command::new("sh");
        command.args(["-c", SHELL, "sh"]).arg(program);
        // The sandbox does not work as root or in most containers, and the page is trusted.
        command.args(["--headless=new", "--no-first-run", "--no-sandbox"]);
        command.args(["--disable-dev-shm-usage", "--disable-gpu"]);
        command.args(["--remote-debugging-pipe", "--window-size=1000,640"]);
        command.arg(format!("--user-data-dir={}", profile.display()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let start = |source| XtaskError::Start {
            program: program.display().to_string(),
            source,
        };
        let mut child = command.spawn().map_err(start)?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed("the browser has no pipes"));
        };
        let (send, messages) = channel();
        std::thread::spawn(move || {
            // Each message ends with a zero byte.
            for message in BufReader::new(output).split(0) {
                let message = message.ok().and_then(|m| serde_json::from_slice(&m).ok());
                let Some(message) = message else {
                    return;
                };
                if send.send(message).is_err() {
                    return;
                }
            }
        });
        let mut page = BrowserPage {
            child,
            input,
            messages,
            next_id: 0,
            session: String::new(),
            problems: Vec::new(),
        };
        let target = page.call("Target.createTarget", json!({"url": "about:blank"}))?;
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let attached = page.call("Target.attachToTarget", attach)?;
        page.session = attached["sessionId"].as_str().unwrap_or("").to_string();
        for domain in ["Page", "Runtime", "Log", "Accessibility"] {
            page.call(&format!("{domain}.enable"), json!({}))?;
        }
        Ok(page)
    }

    /// Calls a method of the protocol.
    pub(super) fn call(&mut self, method: &str, params: Value) -> Result<Value, XtaskError> {
        self.next_id += 1;
        let mut message = json!({"id": self.next_id, "method": method, "params": params});
        if !self.session.is_empty() {
            message["sessionId"] = self.session.as_str().into();
        }
        let sent = write!(self.input, "{message}\0").and_then(|()| self.input.flush());
        sent.map_err(|e| failed(format!("{method}: {e}")))?;
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(message) = self.messages.recv_timeout(left) else {
                return Err(failed(format!("{method}: no answer of the browser")));
            };
            if message["id"] == self.next_id {
                return match message.get("error") {
                    Some(e) => Err(failed(format!("{method}: {e}"))),
                    None => Ok(message["result"].clone()),
                };
            }
            self.note(&message);
        }
    }

    /// Keeps errors that the page reports: exceptions, and resources that its policy forbids.
    fn note(&mut self, message: &Value) {
        let params = &message["params"];
        match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => {
                self.problems.push(params["exceptionDetails"].to_string());
            }
            Some("Log.entryAdded") if params["entry"]["level"] == "error" => {
                self.problems.push(params["entry"]["text"].to_string());
            }
            _ => {}
        }
    }

    /// The errors that the page reported so far.
    pub(super) fn problems(&self) -> &[String] {
        &self.problems
    }

    /// The value of an expression in the page.
    pub(super) fn value(&mut self, expression: &str) -> Result<Value, XtaskError> {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let result = self.call("Runtime.evaluate", params)?;
        match result.get("exceptionDetails") {
            Some(e) => Err(failed(format!("{expression}: {e}"))),
            None => Ok(result["result"]["value"].clone()),
        }
    }

    /// Waits until an expression is true.
    pub(super) fn wait(&mut self, what: &str, expression: &str) -> Result<(), XtaskError> {
        let until = Instant::now() + PATIENCE;
        loop {
            // An evaluation fails while the page is replaced by another one.
            let found = self.value(&format!("Boolean({expression})"));
            if matches!(&found, Ok(value) if *value == true) {
                return Ok(());
            }
            if Instant::now() >= until {
                found?;
                let text = self.value("document.body.innerText")?;
                return Err(failed(format!("{what}: not within time; page:\n{text}")));
            }
            std::thread::sleep(POLL);
        }
    }

    /// Fails unless an expression is true.
    pub(super) fn check(&mut self, what: &str, expression: &str) -> Result<(), XtaskError> {
        match self.value(&format!("Boolean({expression})"))? == true {
            true => Ok(()),
            false => {
                let text = self.value("document.body.innerText")?;
                Err(failed(format!("{what}: {expression}; page:\n{text}")))
            }
        }
    }

    /// Opens an address.
    pub(super) fn open_url(&mut self, url: &str) -> Result<(), XtaskError> {
        self.call("Page.navigate", json!({"url": url}))?;
        self.wait("load", "document.readyState === 'complete'")
    }

    pub(super) fn reload(&mut self) -> Result<(), XtaskError> {
        // A mark that the new document does not have.
        self.value("globalThis.isOld = true")?;
        self.call("Page.reload", json!({}))?;
        self.wait(
            "reload",
            "!globalThis.isOld && document.readyState === 'complete'",
        )
    }

    /// Clicks the middle of an element, if it is visible there.
    pub(super) fn click(&mut self, element: &str) -> Result<(), XtaskError> {
        let place = format!(
            "(() => {{ const e = {element}; if (!e) return null; e.scrollIntoView({{block: 'center'}});
             const r = e.getBoundingClientRect(); const x = r.x + r.width / 2, y = r.y + r.height / 2;
             const top = document.elementFromPoint(x, y); return top && (e === top || e.contains(top)) ? [x, y] : null; }})()"
        );
        let place = self.value(&place)?;
        if !place.is_array() {
            return Err(failed(format!("{element} cannot be clicked")));
        }
        for kind in ["mousePressed", "mouseReleased"] {
            let params = json!({"type": kind, "x": place[0], "y": place[1], "button": "left", "clickCount": 1});
            self.call("Input.dispatchMouseEvent", params)?;
        }
        Ok(())
    }

    /// Types a text into the element with the focus.
    pub(super) fn type_text(&mut self, text: &str) -> Result<(), XtaskError> {
        self.call("Input.insertText", json!({"text": text}))?;
        Ok(())
    }

    /// Presses a key.
    pub(super) fn press(&mut self, key: &str, code: u32) -> Result<(), XtaskError> {
        let text = match key {
            "Enter" => "\r",
            _ => "",
        };
        let down = if text.is_empty() {
            "rawKeyDown"
        } else {
            "keyDown"
        };
        for kind in [down, "keyUp"] {
            let params = json!({"type": kind, "key": key, "code": key, "text": text, "windowsVirtualKeyCode": code});
            self.call("Input.dispatchKeyEvent", params)?;
        }
        Ok(())
    }

    /// Writes a PNG of the page.
    pub(super) fn screenshot(&mut self, path: &Path) -> Result<(), XtaskError> {
        let shot = self.call("Page.captureScreenshot", json!({"format": "png"}))?;
        // The browser decodes the text, so that no other decoder is needed.
        let data = shot["data"].as_str().unwrap_or_default();
        let bytes = self.value(&format!(
            "Array.from(atob('{data}'), (c) => c.charCodeAt(0))"
        ))?;
        let bytes = bytes.as_array().into_iter().flatten();
        let bytes: Vec<u8> = bytes.filter_map(|b| b.as_u64().map(|b| b as u8)).collect();
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(error::file("create", folder))?;
        }
        fs::write(path, bytes).map_err(error::file("write", path))
    }
}

impl Drop for BrowserPage {
    fn drop(&mut self) {
        // Ignore errors: the browser may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
