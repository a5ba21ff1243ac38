/** Text to the clipboard, also where the page is not from a secure address and the browser has no clipboard for it. */
export async function copy(text: string): Promise<void> {
  const { clipboard } = navigator as { clipboard?: Clipboard };
  if (clipboard) {
    await clipboard.writeText(text);
    return;
  }
  const area = document.createElement("textarea");
  area.value = text;
  area.style.position = "fixed";
  area.style.opacity = "0";
  document.body.append(area);
  area.select();
  document.execCommand("copy"); // eslint-disable-line @typescript-eslint/no-deprecated -- there is no other way there
  area.remove();
}
