//! The messages of `chat` in the forms in which people write them: a text, a message, or a list of
//! messages with texts, parts, images and calls of tools.

use std::path::{Path, PathBuf};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};
use tercet_models::answer::{AnswerFormat, AnswerTool, with_tool_prompt};
use tercet_models::dataset::template::{RenderedTemplate, TemplateValue};
use tercet_models::dataset::{ChatMessage, ChatTemplate, DataError, Role};
use tercet_models::{Image, ModelError};

use crate::{array, errors};

/// Keys of a message that templates read.
const KEYS: [&str; 7] = [
    "role",
    "content",
    "name",
    "tool_calls",
    "tool_call_id",
    "reasoning_content",
    "reasoning",
];

/// A conversation, for the chat template of a model.
pub(crate) struct Conversation {
    messages: Vec<ChatMessage>,
    /// The images of all messages, in order.
    pub(crate) images: Vec<Image>,
    pub(crate) tools: Option<ToolList>,
    /// Further variables of the chat template.
    pub(crate) variables: Vec<(String, TemplateValue)>,
}

/// The tools of a conversation.
pub(crate) struct ToolList {
    pub(crate) tools: Vec<AnswerTool>,
    /// The JSON of each function.
    functions: Vec<String>,
    value: TemplateValue,
}

impl Conversation {
    /// Reads messages; `has_vision` is true for models that accept images.
    ///
    /// # Errors
    /// `ValueError` or `TypeError`, which names the message and the key.
    pub(crate) fn new(messages: &Bound<'_, PyAny>, has_vision: bool) -> PyResult<Conversation> {
        let mut conversation = Conversation {
            messages: Vec::new(),
            images: Vec::new(),
            tools: None,
            variables: Vec::new(),
        };
        if messages.is_instance_of::<PyString>() {
            let message = PyDict::new(messages.py());
            message.set_item("role", "user")?;
            message.set_item("content", messages)?;
            conversation.push(&message, has_vision)?;
        } else if let Some(message) = fields_of(messages)? {
            conversation.push(&message, has_vision)?;
        } else {
            for message in messages.try_iter()? {
                let message = message?;
                let Some(fields) = fields_of(&message)? else {
                    return Err(PyTypeError::new_err(format!(
                        "message {} is of class {}; expected a dictionary with `role` and `content`",
                        conversation.messages.len(),
                        message.get_type().name()?
                    )));
                };
                conversation.push(&fields, has_vision)?;
            }
        }
        match conversation.messages.is_empty() {
            true => Err(PyValueError::new_err("the list of messages is empty")),
            false => Ok(conversation),
        }
    }

    fn push(&mut self, fields: &Bound<'_, PyDict>, has_vision: bool) -> PyResult<()> {
        for (key, value) in fields {
            let key: String = key.extract()?;
            // Libraries write fields without a value too.
            if !KEYS.contains(&key.as_str()) && value.is_truthy()? {
                return Err(PyValueError::new_err(format!(
                    "a message has the unknown key `{key}`; expected {}",
                    KEYS.join(", ")
                )));
            }
        }
        let of = |key: &str| -> PyResult<Option<Bound<'_, PyAny>>> {
            Ok(fields.get_item(key)?.filter(|value| !value.is_none()))
        };
        let Some(role) = of("role")? else {
            return Err(PyValueError::new_err(
                "a message has no `role`; `role` and `content` are required",
            ));
        };
        let role: String = role.extract()?;
        let Some(known) = Role::ALL.iter().find(|known| known.name() == role) else {
            let names: Vec<&str> = Role::ALL.iter().map(|role| role.name()).collect();
            return Err(PyValueError::new_err(format!(
                "a message has the role `{role}`; expected one of {}",
                names.join(", ")
            )));
        };
        let calls = match of("tool_calls")? {
            Some(calls) => calls_of(&calls)?,
            None => Vec::new(),
        };
        let content = match of("content")? {
            Some(content) => self.content(&content, has_vision)?,
            None if !calls.is_empty() => TemplateValue::text(""),
            None => {
                return Err(PyValueError::new_err(
                    "a message has no `content`; `role` and `content` are required",
                ));
            }
        };
        let mut shown = vec![("content", content)];
        for key in ["name", "tool_call_id"] {
            if let Some(value) = of(key)? {
                shown.push((key, TemplateValue::text(&value.extract::<String>()?)));
            }
        }
        // Templates read earlier thoughts as `reasoning_content`.
        for key in ["reasoning", "reasoning_content"] {
            if let (Some(thought), Role::Assistant) = (of(key)?, *known) {
                let thought = TemplateValue::text(&thought.extract::<String>()?);
                shown.push(("reasoning_content", thought));
            }
        }
        if !calls.is_empty() {
            shown.push(("tool_calls", TemplateValue::list(calls)));
        }
        self.messages.push(ChatMessage::from_fields(*known, shown));
        Ok(())
    }

    /// The content of a message: a text, or parts for models that accept images.
    fn content(&mut self, content: &Bound<'_, PyAny>, has_vision: bool) -> PyResult<TemplateValue> {
        let text_part = |text: &str| {
            let text = ("text", TemplateValue::text(text));
            TemplateValue::map(vec![("type", TemplateValue::text("text")), text])
        };
        if let Ok(text) = content.extract::<String>() {
            return Ok(match has_vision {
                true => TemplateValue::list(vec![text_part(&text)]),
                false => TemplateValue::text(&text),
            });
        }
        let is_list = content.is_instance_of::<PyList>() || content.is_instance_of::<PyTuple>();
        if !is_list {
            return Err(PyTypeError::new_err(format!(
                "the content of a message is of class {}; expected a text, or a list of parts",
                content.get_type().name()?
            )));
        }
        let (mut parts, mut texts) = (Vec::new(), String::new());
        for part in content.try_iter()? {
            match content_part(&part?)? {
                ContentPart::Text(text) => {
                    parts.push(text_part(&text));
                    texts += &text;
                }
                ContentPart::Image(image) if has_vision => {
                    parts.push(TemplateValue::map(vec![(
                        "type",
                        TemplateValue::text("image"),
                    )]));
                    self.images.push(image);
                }
                ContentPart::Image(_) => {
                    let reason = "the model does not accept images; load the folder of a vision-language model";
                    return Err(errors::model(ModelError::Unsupported(reason.into())));
                }
            }
        }
        Ok(match has_vision {
            true => TemplateValue::list(parts),
            false => TemplateValue::text(&texts),
        })
    }

    /// The conversation up to the start of the answer. If the template does not show tools, a system
    /// prompt does.
    ///
    /// # Errors
    /// `ModelError` if the template fails.
    pub(crate) fn rendered(
        &self,
        template: &ChatTemplate,
        answers: &AnswerFormat,
    ) -> PyResult<RenderedTemplate> {
        let none = TemplateValue::None;
        let rendered = match &self.tools {
            Some(tools) if !answers.has_tools() => {
                let told = with_tool_prompt(&self.messages, &tools.functions);
                template.render(&told, &none, true)
            }
            Some(tools) => template.render(&self.messages, &tools.value, true),
            None => template.render(&self.messages, &none, true),
        };
        rendered.map_err(|e| errors::model(DataError::from(e)))
    }
}

/// The fields of a message: a mapping, or an object of a client library such as `openai`.
fn fields_of<'py>(message: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyDict>>> {
    if let Ok(fields) = message.cast::<PyDict>() {
        return Ok(Some(fields.clone()));
    }
    let py = message.py();
    let fields = if message.hasattr("model_dump")? {
        message.call_method0("model_dump")?
    } else if message.hasattr("keys")? {
        py.get_type::<PyDict>().call1((message,))?
    } else {
        return Ok(None);
    };
    Ok(Some(fields.cast_into::<PyDict>()?))
}

/// A part of the content of a message.
enum ContentPart {
    Text(String),
    Image(Image),
}

fn content_part(part: &Bound<'_, PyAny>) -> PyResult<ContentPart> {
    if let Ok(text) = part.extract::<String>() {
        return Ok(ContentPart::Text(text));
    }
    let Some(fields) = fields_of(part)? else {
        return Err(PyTypeError::new_err(format!(
            "a part of a message is of class {}; expected a text or a dictionary",
            part.get_type().name()?
        )));
    };
    let of = |keys: &[&str]| -> PyResult<Option<Bound<'_, PyAny>>> {
        for key in keys {
            if let Some(value) = fields.get_item(key)?.filter(|value| !value.is_none()) {
                return Ok(Some(value));
            }
        }
        Ok(None)
    };
    let kind = of(&["type"])?.map(|kind| kind.extract::<String>());
    let kind = kind.transpose()?.unwrap_or_default();
    let missing =
        |key: &str| PyValueError::new_err(format!("a part of type `{kind}` has no `{key}`"));
    match kind.as_str() {
        "text" | "input_text" => {
            let text = of(&["text"])?.ok_or_else(|| missing("text"))?;
            Ok(ContentPart::Text(text.extract()?))
        }
        "image_url" | "input_image" | "image" => {
            let source = of(&["image_url", "image", "url", "path", "data"])?;
            let mut source = source.ok_or_else(|| missing("image"))?;
            if let Ok(nested) = source.cast::<PyDict>() {
                let url = nested.get_item("url")?;
                source = url.ok_or_else(|| missing("image_url.url"))?;
            }
            image(&source).map(ContentPart::Image)
        }
        other => Err(PyValueError::new_err(format!(
            "a part of a message has the type `{other}`; expected text, image_url or image"
        ))),
    }
}

/// An image: a path, a `data:` URL, the bytes of a file, an array of uint8 of shape (height, width,
/// 3), or an image of Pillow.
fn image(source: &Bound<'_, PyAny>) -> PyResult<Image> {
    let py = source.py();
    let image_error = |e| errors::model(tercet_models::Error::from(e));
    if let Ok(bytes) = source.cast::<PyBytes>() {
        return Image::decode(bytes.as_bytes(), Path::new("image")).map_err(image_error);
    }
    if let Ok(text) = source.extract::<String>() {
        if let Some(data) = text.strip_prefix("data:") {
            let (_, encoded) = data.split_once(";base64,").ok_or_else(|| {
                PyValueError::new_err("a `data:` URL of an image has no `;base64,` part")
            })?;
            let decoded = py.import("base64")?.call_method1("b64decode", (encoded,))?;
            let decoded = decoded.cast_into::<PyBytes>()?;
            return Image::decode(decoded.as_bytes(), Path::new("image")).map_err(image_error);
        }
        if text.starts_with("http:") || text.starts_with("https:") {
            return Err(PyValueError::new_err(format!(
                "the image {text} is not downloaded; pass its bytes, a path or a `data:` URL"
            )));
        }
    }
    if let Ok(path) = source.extract::<PathBuf>() {
        let text = path.to_string_lossy();
        let path = text
            .strip_prefix("file://")
            .map_or(path.clone(), PathBuf::from);
        return Image::open(&path).map_err(image_error);
    }
    let pixels = match source.hasattr("convert")? {
        // Pillow.
        true => {
            let rgb = source.call_method1("convert", ("RGB",))?;
            py.import("numpy")?.call_method1("asarray", (rgb,))?
        }
        false => source.clone(),
    };
    let pixels = array::to_tensor("image", &pixels, tercet::DType::U8)?;
    match (pixels.dtype(), pixels.shape()) {
        (tercet::DType::U8, &[height, width, 3]) => {
            Image::from_rgb(width, height, pixels.bytes().to_vec()).map_err(image_error)
        }
        (dtype, shape) => Err(errors::TensorError::new_err(format!(
            "an image is {dtype}{shape:?}; expected u8 of shape (height, width, 3)"
        ))),
    }
}

/// The JSON of a Python object.
fn json_of(object: &Bound<'_, PyAny>) -> PyResult<String> {
    let json = object.py().import("json")?;
    json.call_method1("dumps", (object,))?.extract()
}

/// The variables of a chat template that arguments of `chat` set.
///
/// # Errors
/// `ValueError` for values that are not JSON, `TypeError` for keys that are no texts.
pub(crate) fn variables_of(
    reasoning_effort: Option<String>,
    enable_thinking: Option<bool>,
    further: Option<&Bound<'_, PyDict>>,
) -> PyResult<Vec<(String, TemplateValue)>> {
    let mut all: Vec<(String, TemplateValue)> = Vec::new();
    if let Some(effort) = reasoning_effort {
        if effort == "none" {
            all.push(("enable_thinking".into(), TemplateValue::Bool(false)));
        }
        all.push(("reasoning_effort".into(), TemplateValue::text(&effort)));
    }
    if let Some(thinks) = enable_thinking {
        all.push(("enable_thinking".into(), TemplateValue::Bool(thinks)));
    }
    for (name, value) in further.into_iter().flatten() {
        all.push((name.extract()?, value_of(&value)?));
    }
    Ok(all)
}

/// A Python object as a value for templates.
fn value_of(object: &Bound<'_, PyAny>) -> PyResult<TemplateValue> {
    let value = TemplateValue::from_json(&json_of(object)?);
    value.map_err(|e| PyValueError::new_err(tercet::one_line(&e)))
}

/// The calls of an assistant's message. Templates expect the arguments as objects.
fn calls_of(calls: &Bound<'_, PyAny>) -> PyResult<Vec<TemplateValue>> {
    let json = calls.py().import("json")?;
    let call = |call: PyResult<Bound<'_, PyAny>>| {
        let call = call?;
        let wrong = || {
            PyValueError::new_err(
                "a call of a tool has no `function` with `name` and `arguments`, as in OpenAI's API",
            )
        };
        let fields = fields_of(&call)?.ok_or_else(wrong)?;
        let function = fields.get_item("function")?.ok_or_else(wrong)?;
        let function = fields_of(&function)?.ok_or_else(wrong)?;
        let name: String = function.get_item("name")?.ok_or_else(wrong)?.extract()?;
        let arguments = function.get_item("arguments")?.ok_or_else(wrong)?;
        let arguments = match arguments.is_instance_of::<PyString>() {
            true => json.call_method1("loads", (arguments,))?,
            false => arguments,
        };
        let function = TemplateValue::map(vec![
            ("name", TemplateValue::text(&name)),
            ("arguments", value_of(&arguments)?),
        ]);
        let mut shown = vec![
            ("type", TemplateValue::text("function")),
            ("function", function),
        ];
        if let Some(id) = fields.get_item("id")?.filter(|id| !id.is_none()) {
            shown.push(("id", TemplateValue::text(&id.extract::<String>()?)));
        }
        Ok(TemplateValue::map(shown))
    };
    calls.try_iter()?.map(call).collect()
}

/// The tools of a conversation: functions as in OpenAI's API, with or without `{"type":
/// "function"}` around them. `None` without tools, or if the choice is `none`.
///
/// # Errors
/// `ValueError` for other tools and choices.
pub(crate) fn tools_of(
    tools: Option<&Bound<'_, PyAny>>,
    choice: Option<&Bound<'_, PyAny>>,
) -> PyResult<Option<ToolList>> {
    let choice: Option<String> = match choice.filter(|choice| !choice.is_none()) {
        Some(choice) => Some(choice.str()?.to_string_lossy().into_owned()),
        None => None,
    };
    match choice.as_deref() {
        None | Some("auto") => {}
        Some("none") => return Ok(None),
        Some(other) => {
            return Err(PyValueError::new_err(format!(
                "tool_choice is `{other}`; expected auto or none; to require a call, pass its json_schema"
            )));
        }
    }
    let Some(tools) = tools.filter(|tools| !tools.is_none()) else {
        return Ok(None);
    };
    let (mut known, mut functions, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for tool in tools.try_iter()? {
        let tool = tool?;
        let wrong = || {
            PyValueError::new_err(
                "a tool has no `function` with a `name` and `parameters`, as in OpenAI's API",
            )
        };
        let mut fields = fields_of(&tool)?.ok_or_else(wrong)?;
        if fields.get_item("function")?.is_none() {
            let whole = PyDict::new(tools.py());
            whole.set_item("type", "function")?;
            whole.set_item("function", &fields)?;
            fields = whole;
        }
        let function = fields.get_item("function")?.ok_or_else(wrong)?;
        let function = fields_of(&function)?.ok_or_else(wrong)?;
        function
            .get_item("name")?
            .ok_or_else(wrong)?
            .extract::<String>()?;
        let json = json_of(function.as_any())?;
        let tool = AnswerTool::from_json(&json);
        known.push(tool.map_err(|e| PyValueError::new_err(tercet::one_line(&e)))?);
        functions.push(json);
        values.push(value_of(fields.as_any())?);
    }
    if known.is_empty() {
        return Ok(None);
    }
    Ok(Some(ToolList {
        tools: known,
        functions,
        value: TemplateValue::list(values),
    }))
}
