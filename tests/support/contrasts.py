"""Contrast of the texts of a page against what lies behind them, as WCAG 2.2 (1.4.3) counts it."""

MIN_CONTRAST = 4.5

CONTRASTS = """
const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
const linear = (c) => ((c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
const ground = (node) => {
  for (; node; node = node.parentElement) {
    const color = parse(getComputedStyle(node).backgroundColor);
    if (color.length === 3 || color[3] > 0) return color;
  }
  return [255, 255, 255];
};
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode.parentElement;
  if (!walker.currentNode.data.trim() || !node.checkVisibility()) continue;
  if (node.closest("noscript, #skip, .reader-rows")) continue;
  const style = getComputedStyle(node);
  const [a, b] = [light(parse(node.closest("svg") ? style.fill : style.color)), light(ground(node))];
  found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), walker.currentNode.data.slice(0, 40)]);
}
return found.sort((left, right) => left[0] - right[0]).slice(0, 3);
"""
"""A script that returns the three texts with the lowest contrast."""
