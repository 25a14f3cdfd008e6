//! The JavaScript interface.

use js_sys::{Array, Float32Array, Function, Object, Reflect, Uint32Array};
use tercet::{Device, DeviceOptions, one_line};
use wasm_bindgen::prelude::*;

use crate::{Failure, Language, Root, Roots, Sentences};

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_namespace = console)]
    fn error(text: &str);
}

/// Prints panics to the browser console.
#[wasm_bindgen(start)]
fn start() {
    std::panic::set_hook(Box::new(|panic| error(&panic.to_string())));
}

fn failed(e: impl std::fmt::Display) -> JsValue {
    js_sys::Error::new(&e.to_string()).into()
}

fn failure(e: Failure) -> JsValue {
    failed(one_line(&*e))
}

/// A device, and the models that were opened on it.
#[wasm_bindgen]
pub struct Tercet {
    device: Device,
    language: Option<Language>,
    sentences: Option<Sentences>,
    roots: Option<Roots>,
}

#[wasm_bindgen]
impl Tercet {
    fn on(device: Device) -> Tercet {
        Tercet {
            device,
            language: None,
            sentences: None,
            roots: None,
        }
    }

    /// Opens the browser's GPU. The error contains the reason if there is none.
    pub async fn webgpu() -> Result<Tercet, JsValue> {
        let device = Device::request_wgpu(&DeviceOptions::default()).await;
        Ok(Tercet::on(device.map_err(|e| failed(one_line(&e)))?))
    }

    /// The CPU, with one thread.
    pub fn cpu() -> Tercet {
        Tercet::on(Device::cpu())
    }

    /// Opens the language model of a GGUF file.
    #[wasm_bindgen(js_name = openLanguage)]
    pub fn open_language(&mut self, gguf: &[u8]) -> Result<(), JsValue> {
        self.language = Some(Language::open(gguf, &self.device).map_err(failure)?);
        Ok(())
    }

    /// Generates text after a prompt; `text` is called with each piece. Returns `tokens`
    /// (Uint32Array) and `finish`.
    pub async fn write(
        &mut self,
        prompt: String,
        most: usize,
        text: Function,
    ) -> Result<Object, JsValue> {
        let language =
            (self.language.as_mut()).ok_or_else(|| failed("no language model is loaded"))?;
        let heard = &mut |piece: &str| {
            let answer = text.call1(&JsValue::NULL, &piece.into());
            answer.is_ok_and(|answer| !answer.is_falsy() || answer.is_undefined())
        };
        let written = language.write(&prompt, most, heard).await;
        let (tokens, finish) = written.map_err(failure)?;
        let result = Object::new();
        Reflect::set(&result, &"tokens".into(), &Uint32Array::from(&*tokens))?;
        Reflect::set(&result, &"finish".into(), &format!("{finish:?}").into())?;
        Ok(result)
    }

    /// Opens a sentence encoder from the contents of its files.
    #[wasm_bindgen(js_name = openSentences)]
    pub fn open_sentences(
        &mut self,
        config: &[u8],
        tokenizer: &[u8],
        weights: Vec<u8>,
    ) -> Result<(), JsValue> {
        let opened = Sentences::open(config, tokenizer, weights, &self.device);
        self.sentences = Some(opened.map_err(failure)?);
        Ok(())
    }

    /// Embeddings of texts, one `Float32Array` each.
    pub async fn embed(&mut self, texts: Vec<String>) -> Result<Array, JsValue> {
        let sentences = self.sentences.as_mut();
        let sentences = sentences.ok_or_else(|| failed("no sentence encoder is loaded"))?;
        let embeddings = sentences.embed(&texts).await.map_err(failure)?;
        let arrays = embeddings
            .iter()
            .map(|e| JsValue::from(Float32Array::from(&**e)));
        Ok(arrays.collect())
    }

    /// Square root of a number: `[root, iterations, iterations of all runs]`.
    pub async fn root(&mut self, x: f32) -> Result<Array, JsValue> {
        let roots = match &mut self.roots {
            Some(roots) => roots,
            none => none.insert(Roots::open(&self.device).map_err(failure)?),
        };
        let Root {
            root,
            iterations,
            total,
        } = roots.of(x).await.map_err(failure)?;
        let numbers: [JsValue; 3] = [root.into(), iterations.into(), total.into()];
        Ok(numbers.into_iter().collect::<Array>())
    }
}
