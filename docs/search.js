// Changes what is typed into the search of the site before it is looked up. The search would read
// the dashes of an option such as --lora as "without", and every word as the beginning of a longer
// one; here they are parts of a name, and a whole word counts more than a beginning.
const post = Worker.prototype.postMessage;

Worker.prototype.postMessage = function (message, ...rest) {
  const isQuery = message && message.type === 2 && typeof message.data === "string";
  post.call(this, isQuery ? {...message, data: asked(message.data)} : message, ...rest);
};

function asked(query) {
  if (/["+^~*]|(^|\s)-\w/.test(query)) return query; // its operators
  const words = query.split(/[^\p{L}\p{N}]+/u).filter(Boolean);
  return words.map(word => `${word}^10 ${word}`).join(" ");
}
