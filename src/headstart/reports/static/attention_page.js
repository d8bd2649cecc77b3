// Start of a stand-alone attention page: its data is JSON in the page, arrays are bytes in base64.

"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const bytes = (text) => Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  data.weights = new Uint16Array(bytes(data.weights).buffer);
  data.seen = bytes(data.seen);
  exploreAttention(document, data, true);
})();
