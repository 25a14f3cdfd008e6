// Pictures of the next message: from the clipboard, a drop or a file.

import { $, button, element, notice } from "./dom.js";

const KINDS = ["image/png", "image/jpeg", "image/webp", "image/gif"];

export const pictures = { all: [], isAllowed: false };

function show() {
  const items = pictures.all.map((url, at) => element("li", {},
    element("img", { src: url, alt: `Picture ${at + 1}` }),
    button("Remove", () => {
      pictures.all.splice(at, 1);
      show();
    }, `Remove picture ${at + 1}`)));
  $("pictures").replaceChildren(...items);
}

function add(files) {
  for (const file of files) {
    if (!KINDS.includes(file.type)) {
      notice(`${file.name || "the file"} is no PNG, JPEG, WebP or GIF picture`);
      continue;
    }
    const reader = new FileReader();
    reader.addEventListener("load", () => {
      pictures.all.push(reader.result);
      show();
    });
    reader.readAsDataURL(file);
  }
}

// Takes the pictures out of the composer.
export function takePictures() {
  const taken = pictures.all;
  pictures.all = [];
  show();
  return taken;
}

// Shows or hides the ways to add pictures, by the model.
export function allowPictures(isAllowed) {
  pictures.isAllowed = isAllowed;
  $("add-picture").hidden = !isAllowed;
  if (!isAllowed) {
    takePictures();
  }
}

export function setUpPictures() {
  const files = (list) => [...(list ?? [])].filter((file) => file.type.startsWith("image/"));
  $("prompt").addEventListener("paste", (event) => {
    const found = files(event.clipboardData?.files);
    if (pictures.isAllowed && found.length) {
      event.preventDefault();
      add(found);
    }
  });
  $("composer").addEventListener("dragover", (event) => {
    if (pictures.isAllowed) {
      event.preventDefault();
    }
  });
  $("composer").addEventListener("drop", (event) => {
    if (pictures.isAllowed) {
      event.preventDefault();
      add(files(event.dataTransfer?.files));
    }
  });
  $("add-picture").addEventListener("click", () => $("picture-file").click());
  $("picture-file").addEventListener("change", (event) => {
    add([...event.target.files]);
    event.target.value = "";
  });
}
