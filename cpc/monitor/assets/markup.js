// Shows the tables and lists that the server sends as nodes [tag, attributes, text or nodes] (cpc/pages/html.py).
// Elements that do not change stay in place, and keep the focus, the scroll position and a click that has begun.
(function () {
  const shown = {}; // by the id of the parent: its content, as JSON

  function fill(parent, content) {
    if (typeof content === "string") {
      if (parent.textContent !== content) parent.textContent = content;
      return;
    }
    if (!parent.children.length) parent.textContent = "";
    content.forEach(([tag, attributes, inside], index) => {
      const element = elementAt(parent, index, tag, attributes.id);
      for (const name of element.getAttributeNames()) {
        if (!(name in attributes)) element.removeAttribute(name);
      }
      for (const [name, value] of Object.entries(attributes)) {
        if (element.getAttribute(name) !== value) element.setAttribute(name, value);
      }
      fill(element, inside);
    });
    while (parent.children.length > content.length) parent.lastElementChild.remove();
  }

  // Return the child at an index; it is moved there or created if necessary.
  function elementAt(parent, index, tag, id) {
    const there = parent.children[index];
    if (there && there.localName === tag && there.id === (id || "")) return there;
    const known = id && document.getElementById(id);
    const element = known && known.parentElement === parent ? known : document.createElement(tag);
    parent.insertBefore(element, there || null);
    return element;
  }

  let numAsked = 0; // makes a second press of the same button a new value
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-show], [data-sort]");
    if (!button) return;
    const { show, sort } = button.dataset;
    const [store, what] = show === undefined ? ["sort-asked", sort] : ["show-asked", show];
    window.dash_clientside.set_props(store, { data: [what, ++numAsked] });
  });

  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.markup = {
    // Show the nodes of every parent by its id.
    show: function (parts) {
      const focused = document.activeElement;
      for (const [id, node] of Object.entries(parts || {})) {
        const written = JSON.stringify(node);
        if (shown[id] === written) continue;
        fill(document.getElementById(id), [node]);
        shown[id] = written;
      }
      // A row loses the focus when it moves.
      if (document.activeElement !== focused && focused.isConnected) focused.focus({ preventScroll: true });
    },
  };
})();
